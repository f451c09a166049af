"""Starts `iwp serve` on a free port with the tiny golden model, and small HTTP helpers."""
import atexit
import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

iwp, data = sys.argv[1:3]
golden = os.path.join(data, "golden")
images = os.path.join(golden, "vectors", "llava-ov", "images")


def convert(folder):
    """The golden checkpoint as GGUF files."""
    model, mmproj = os.path.join(folder, "m.gguf"), os.path.join(folder, "mm.gguf")
    subprocess.run([iwp, "convert", os.path.join(golden, "models", "llava-ov"), "-o", model, "--mmproj", mmproj],
                   check=True, stderr=subprocess.DEVNULL)
    return model, mmproj


class Server:
    def __init__(self, model, mmproj, *flags, env=None, template="llava-onevision"):
        self.process = subprocess.Popen(
            [iwp, "serve", "-m", model, "-mm", mmproj, *(["--chat-template", template] if template else []), "--port", "0", "-t", "1", *flags],
            stderr=subprocess.PIPE, text=True, errors="replace", env={**os.environ, **(env or {})})
        atexit.register(self.process.kill)  # whatever happens to the test
        self.log, self.port = [], None
        ready = threading.Event()

        def read():
            for line in self.process.stderr:
                self.log.append(line)
                m = re.match(r"listening on http://127\.0\.0\.1:(\d+)", line)
                if m:
                    self.port = int(m[1])
                if "is ready" in line:
                    ready.set()
            ready.set()
        self.reader = threading.Thread(target=read, daemon=True)
        self.reader.start()
        ready.wait(60)
        assert any("is ready" in x for x in self.log), "".join(self.log)
        self.base = f"http://127.0.0.1:{self.port}"
        for _ in range(200):
            if self.get("/health")[0] == 200:
                return
            time.sleep(0.02)
        raise AssertionError("never healthy: " + "".join(self.log))

    def request(self, method, path, body=None, headers=None, timeout=60):
        h = {"Content-Type": "application/json"} if body is not None else {}
        h.update(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        r = urllib.request.Request(self.base + path, body, h, method=method)
        try:
            with urllib.request.urlopen(r, timeout=timeout) as a:
                return a.status, a.read(), dict(a.headers)
        except urllib.error.HTTPError as e:
            return e.code, e.read(), dict(e.headers)

    def get(self, path, headers=None):
        return self.request("GET", path, headers=headers)

    def post(self, path, body, headers=None, timeout=60):
        return self.request("POST", path, body, headers, timeout)

    def chat(self, content, **fields):
        status, text, _ = self.post("/v1/chat/completions", chat_body(content, **fields))
        return status, json.loads(text)

    def stream(self, content, **fields):
        """Status, events as text."""
        status, text, head = self.post("/v1/chat/completions", chat_body(content, stream=True, **fields))
        assert head["Content-Type"].startswith("text/event-stream"), head
        return [e[6:] for e in text.decode().split("\n\n") if e.startswith("data: ")]

    def socket(self):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        return s

    def metric(self, name):
        text = self.get("/metrics")[1].decode()
        return float(re.search(rf"^iwp:{re.escape(name)} (\S+)$", text, re.M)[1])

    def stop(self):
        """SIGTERM; the exit code and what it said."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.reader.join(10)
        return code, "".join(self.log)


def chat_body(content, max_tokens=6, **fields):
    fields.setdefault("temperature", 0)
    return {"model": "x", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, **fields}


def text(t):
    return {"type": "text", "text": t}


def picture(name="small.png", form="object"):
    b = base64.b64encode(open(os.path.join(images, name), "rb").read()).decode()
    if form == "raw":
        return {"type": "image_url", "image_url": {"url": b}}
    url = "data:image/jpeg;base64," + b  # the claimed type is wrong, the bytes are PNG
    return {"type": "image_url", "image_url": url if form == "string" else {"url": url, "detail": "low"}}


failures = 0


def check(name, ok, why=""):
    global failures
    if not ok:
        failures += 1
        print(f"FAIL {name}: {str(why)[:400]}")


def finish():
    print("all checks hold" if not failures else f"{failures} failed")
    sys.exit(failures != 0)


def folder():
    return tempfile.TemporaryDirectory()
