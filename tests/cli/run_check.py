"""run_check.py CHECK PROGRAM: runs a check that lives beside the tree.

The check of the methods is given every method the program has and the check knows, so that a method is
checked from the day it enters the table.  IWP_TEST_LONG=1: another seed each time and ten times the cases."""
import importlib.util
import json
import os
import subprocess
import sys
import time

check, program = sys.argv[1:3]
name = os.path.basename(check)
long = os.environ.get("IWP_TEST_LONG") == "1"
# numpy's products, which the references are made of, differ with the CPU: the kernels for FMA round copies of one token
# differently, and their reference then prefers the one with the higher index, against its own rule.
env = dict(os.environ, OPENBLAS_CORETYPE="Prescott")
args = []
if long:
    env["CHECK_SEED"] = str(int(time.time()) % 1000000)
    print("CHECK_SEED", env["CHECK_SEED"])
if name == "check_select.py":
    args = ["1000" if long else "100"]
if name == "check_methods.py":
    sys.path.insert(0, os.path.dirname(check))
    spec = importlib.util.spec_from_file_location("outside", check)
    outside = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(outside)
    table = json.loads(subprocess.run([program, "methods", "--json"], capture_output=True, check=True).stdout)
    known = [m["name"] for m in table["methods"] if m["name"] in outside.DEFAULT]
    args = ["400" if long else "40", ",".join(known)]
sys.exit(subprocess.run([sys.executable, check, program, *args], env=env).returncode)
