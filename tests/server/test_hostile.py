"""test_hostile.py IWP DATA: what strangers send: bodies without end, half-closed and trickling connections, thousands of connections, wrong
types and bytes, corrupt pictures of every kind, addresses that must not be fetched, paths that must not be read; then kill -9 and
a new start.  The server answers with the right status, stays alive and (sanitizers) leaks nothing."""
import base64
import concurrent.futures as futures
import json
import os
import signal
import socket
import time

from serve import Server, chat_body, check, convert, data, finish, folder, images, picture, text

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


def status_of(c, timeout=20):
    """Status of the answer on a socket; 0: closed without one."""
    c.settimeout(timeout)
    got = b""
    try:
        while b"\r\n" not in got:
            d = c.recv(4096)
            if not d:
                break
            got += d
    except (ConnectionError, socket.timeout):
        pass
    return int(got.split()[1]) if got.startswith(b"HTTP/1.1 ") else 0


def uri(blob):
    return [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(blob).decode()}}, text("what?")]


with folder() as tmp:
    model, mmproj = convert(tmp)
    media = os.path.join(tmp, "media")
    os.mkdir(media)
    s = Server(model, mmproj, "-np", "2", "--timeout", "4", "--allow-remote-images", "--media-path", media, "--pixel-limit", "1", "-c", "4096")

    def alive(what):
        status, b = s.chat("hi", max_tokens=2)
        check(f"alive after {what}", status == 200 and s.get("/health")[0] == 200, b)

    # ---- 300 MB, announced and not, and one that stops half-way
    c = s.socket()
    c.sendall((HEAD + "Content-Length: 314572800\r\n\r\n").encode())
    block, sent = b" " * (1 << 20), 0
    try:
        for _ in range(300):
            c.sendall(block)
            sent += 1
    except ConnectionError:
        pass
    check("300 MB", status_of(c) == 413, sent)
    c.close()
    c = s.socket()
    c.sendall((HEAD + "Transfer-Encoding: chunked\r\n\r\n").encode())
    try:
        for _ in range(300):
            c.sendall(b"100000\r\n" + block + b"\r\n")
        c.sendall(b"0\r\n\r\n")
    except ConnectionError:
        pass
    check("300 MB in chunks", status_of(c) == 413)
    c.close()
    c = s.socket()
    c.sendall((HEAD + "Content-Length: 314572800\r\nExpect: 100-continue\r\n\r\n").encode())
    check("asked first", status_of(c) == 413)
    c.close()
    c = s.socket()
    c.sendall((HEAD + "Content-Length: 1000000\r\n\r\n{").encode())
    c.close()
    alive("large bodies")

    # ---- half-closed: the answer is not wanted any more
    body = json.dumps(chat_body("hi", max_tokens=3000, ignore_eos=True)).encode()
    half = []
    for _ in range(4):
        c = s.socket()
        c.sendall((HEAD + f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
        c.shutdown(socket.SHUT_WR)
        half.append(c)
    end = time.time() + 30
    while s.metric("requests_processing") + s.metric("requests_deferred") > 0 and time.time() < end:
        time.sleep(0.05)
    check("half-closed are dropped", s.metric("requests_processing") + s.metric("requests_deferred") == 0)
    for c in half:
        c.close()
    alive("half-closed sockets")

    # ---- slowloris: heads and bodies a byte at a time, from the first line on; all are closed within the time-out of 4 s
    slow = []
    for i in range(200):
        c = s.socket()
        c.sendall((("GET", HEAD, HEAD + "Content-Length: 50000\r\n\r\n", "GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /health HT")[i % 4]).encode())
        slow.append(c)
    # the last kind has had an answer: it may be silent for one time-out, and send for another
    t0, open_, answers, served, asked = time.time(), dict(enumerate(slow)), {}, 0, 0
    while open_ and time.time() - t0 < 30:
        for i, c in list(open_.items()):
            c.setblocking(False)
            try:
                c.send(b"X")
            except OSError:
                pass
            try:
                while True:
                    d = c.recv(4096)
                    if not d:
                        break
                    answers[i] = answers.get(i, b"") + d
                del open_[i]
                answers.setdefault(i, b"")
                if i % 4 < 3:
                    late = time.time() - t0
            except BlockingIOError:
                pass
            except OSError:
                del open_[i]
                answers.setdefault(i, b"")
        asked += 2
        served += s.get("/health")[0] == 200
        served += s.chat("hi", max_tokens=1)[0] == 200
        time.sleep(0.2)
    print(f"slowloris: {200 - len(open_)} of 200 connections were closed, those without a request within {late:.1f} s of the time-out of 4; "
          f"{served} of {asked} other requests were answered meanwhile")
    check("slowloris are closed", not open_, len(open_))
    check("slowloris: others are served", served == asked, (served, asked))
    check("slowloris: told so", sum(b" 408 " in a for i, a in answers.items() if i % 4 < 3) > 75, sum(b" 408 " in a for a in answers.values()))
    check("slowloris: first answers", all(b" 200 " in a for i, a in answers.items() if i % 4 == 3))
    for c in slow:
        c.close()
    # more unfinished heads than one address may have: the oldest go at once, others are served
    slow = []
    for i in range(300):
        c = s.socket()
        c.sendall(b"GET / HTTP/1.1\r\nX: ")
        slow.append(c)
    check("many heads: served", s.get("/health")[0] == 200)
    check("many heads: the oldest is told", status_of(slow[0], 3) in (0, 408))
    for c in slow:
        c.close()
    alive("slowloris")

    # ---- 10,000 connections
    t0 = time.time()

    def knock(i):
        for _ in range(625):
            try:
                c = s.socket()
                if i % 4 == 1:
                    c.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                if i % 4 == 2:
                    c.sendall(b"\x16\x03\x01\x02\x00")
                c.close()
            except OSError:
                return False
        return True
    with futures.ThreadPoolExecutor(16) as ex:
        ok = sum(ex.map(knock, range(16)))
    print(f"10,000 connections in {time.time() - t0:.1f} s")
    check("10,000 connections", ok == 16, ok)
    alive("10,000 connections")

    # ---- wrong types and bytes
    for kind, want in (("text/plain", 415), ("multipart/form-data; boundary=x", 415), ("application/x-www-form-urlencoded", 415), ("application/json; charset=utf-8", 400)):
        check(f"type {kind}", s.post("/v1/chat/completions", b"a=b", {"Content-Type": kind})[0] == want)
    for name, b in (("utf-8", b'{"messages":[{"role":"user","content":"\xc3\x28"}]}'), ("overlong", b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}'),
                    ("surrogate", b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}]}'), ("nul", b'{"messages":[{"role":"user","content":"a\0b"}]}'),
                    ("cut", b'{"messages":[{"role":"user","con'), ("deep", b'{"a":' * 20000), ("number", b'{"messages":[],"seed":1e999999}')):
        for path in ("/v1/chat/completions", "/v1/completions", "/tokenize", "/apply-template", "/v1/chat/completions/input_tokens"):
            status, a, _ = s.post(path, b)
            check(f"bytes {name} at {path}", status == 400 and json.loads(a)["error"]["type"] == "invalid_request_error", (status, a))
    for m in ("BREW", "PATCH", "OPTIONS", "TRACE"):
        status, a, _ = s.request(m, "/v1/chat/completions")
        check(f"method {m}", status == 405 and json.loads(a)["error"]["code"] == 405, (status, a))
    for raw in (b"GET / HTTP/9.9\r\n\r\n", b"GET\r\n\r\n", b"A" * 100000, b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n",
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n"):
        c = s.socket()
        try:
            c.sendall(raw)
        except ConnectionError:
            pass
        check(f"line {raw[:20]}", status_of(c, 6) in (0, 400, 413, 414, 431, 505), raw[:40])
        c.close()
    alive("wrong bytes")

    # ---- corrupt pictures: every committed corrupt file, and good ones cut and flipped
    blobs = []
    for root, _, names in os.walk(os.path.join(os.path.dirname(data), "fuzz", "corpus", "image")):
        blobs += [(n, open(os.path.join(root, n), "rb").read()) for n in sorted(names)]
    for root, _, names in os.walk(os.path.join(data, "media")):
        for n in sorted(names):
            if n.rsplit(".", 1)[-1] in ("png", "jpg", "jpeg", "webp", "gif"):
                b = open(os.path.join(root, n), "rb").read()
                blobs += [(n + " cut", b[:len(b) // 2]), (n + " head", b[:20]), (n + " flipped", b[:40] + bytes(x ^ 0x5a for x in b[40:80]) + b[80:])]
    bad = 0
    for n, b in blobs:
        status, a, _ = s.post("/v1/chat/completions", chat_body(uri(b), max_tokens=1))
        bad += status == 400
        check(f"picture {n}", status == 200 or (status == 400 and json.loads(a)["error"]["message"]), (status, a))
    print(f"{len(blobs)} odd pictures, {bad} refused")
    check("corrupt pictures", bad > 10, bad)
    import struct
    import zlib
    rows = zlib.compress(b"\0" * (3 * 2000 + 1) * 2000)
    chunk = lambda k, d: struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
    large = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2000, 2000, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    status, a, _ = s.post("/v1/chat/completions", chat_body(uri(large)))
    check("pixel limit", status == 400 and b"pixels" in a, (status, a))

    # ---- addresses inside; with fetching allowed
    for url in ("http://127.0.0.1:%d/health" % s.port, "http://localhost:%d/health" % s.port, "http://[::1]/", "http://0.0.0.0/", "http://10.0.0.1/", "http://192.168.1.1/",
                "http://172.16.0.1/", "http://169.254.169.254/latest/meta-data/", "http://100.100.100.200/", "http://[::ffff:127.0.0.1]/", "http://[fe80::1]/",
                "http://[fd00:ec2::254]/", "http://2130706433/", "http://0x7f.1/", "http://user:pw@127.0.0.1/", "ftp://127.0.0.1/a.png", "gopher://127.0.0.1/"):
        status, a, _ = s.post("/v1/chat/completions", chat_body([{"type": "image_url", "image_url": {"url": url}}]))
        check(f"fetch {url}", status == 400 and any(x in a for x in (b"private", b"http: and https:", b"Login denied", b"onnect")), (status, a))
    # ---- paths outside
    os.symlink("/etc", os.path.join(media, "etc"))
    for path in ("file:///etc/passwd", "file://../m.gguf", "file://%2e%2e/m.gguf", "file://etc/passwd", "file://" + media + "/../m.gguf", "file:///proc/self/environ", "file://.", "file://"):
        status, a, _ = s.post("/v1/chat/completions", chat_body([{"type": "image_url", "image_url": {"url": path}}]))
        check(f"path {path}", status == 400 and b"root:" not in a, (status, a))
    alive("all of it")
    code, log = s.stop()
    check("exit", code == 0 and "Sanitizer" not in log, (code, log[-1500:]))

    # ---- kill -9 in the middle of work, and again
    s = Server(model, mmproj, "-np", "2")
    c = s.socket()
    body = json.dumps(chat_body([picture(), text("count")], max_tokens=3000, ignore_eos=True, stream=True)).encode()
    c.sendall((HEAD + f"Content-Length: {len(body)}\r\n\r\n").encode() + body)
    c.recv(100)
    s.process.send_signal(signal.SIGKILL)
    s.process.wait(20)
    t0 = time.time()
    again = Server(model, mmproj, "-np", "2", "--port", str(s.port))
    print(f"ready {1e3 * (time.time() - t0):.0f} ms after kill -9")
    check("after kill -9", again.port == s.port and again.chat([picture(), text("what?")])[0] == 200)
    check("exit", again.stop()[0] == 0)
    shipped = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "iwp", "models", "iwp-photo.gguf")
    if os.path.exists(shipped):
        s = Server(shipped, shipped.replace(".gguf", "-mmproj.gguf"), template=None)
        s.process.send_signal(signal.SIGKILL)
        s.process.wait(20)
        t0 = time.time()
        s = Server(shipped, shipped.replace(".gguf", "-mmproj.gguf"), template=None)
        print(f"the shipped model is ready {1e3 * (time.time() - t0):.0f} ms after kill -9")
        check("exit", s.stop()[0] == 0)
finish()
