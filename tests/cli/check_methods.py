"""check_methods.py CHECK PROGRAM CASES: runs the outside check on every method the program has that the
check knows, so that a method is checked from the day it enters the table."""
import importlib.util
import json
import os
import subprocess
import sys

check, program, cases = sys.argv[1:4]
sys.path.insert(0, os.path.dirname(check))
spec = importlib.util.spec_from_file_location("outside", check)
outside = importlib.util.module_from_spec(spec)
spec.loader.exec_module(outside)
table = json.loads(subprocess.run([program, "methods", "--json"], capture_output=True, check=True).stdout)
names = [m["name"] for m in table["methods"] if m["name"] in outside.DEFAULT]
sys.exit(subprocess.run([sys.executable, check, program, cases, ",".join(names)]).returncode)
