"""test_load.py IWP DATA: many clients, a full queue, clients that leave, read slowly or never end; keys and hosts; the end."""
import base64
import concurrent.futures as futures
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time
import zlib

from serve import Server, chat_body, check, convert, finish, folder, iwp, picture, text


def raw(s, body, extra=""):
    c = s.socket()
    body = json.dumps(body).encode()
    c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return c


def wait(what, seconds=20):
    end = time.time() + seconds
    while time.time() < end:
        if what():
            return True
        time.sleep(0.05)
    return False


long = chat_body("count", max_tokens=150000, ignore_eos=True)

with folder() as tmp:
    model, mmproj = convert(tmp)

    # ---- two sessions, short queue
    s = Server(model, mmproj, "-np", "2", "--queue", "2", "--api-key", "secret", "--timeout", "5", "--body-limit", "1", "-c", "200000")
    key = {"Authorization": "Bearer secret"}
    for name, h, want in (("none", {}, 401), ("wrong", {"Authorization": "Bearer secre"}, 401), ("longer", {"Authorization": "Bearer secrets"}, 401),
                          ("right", key, 200), ("header", {"X-Api-Key": "secret"}, 200)):
        status, b, _ = s.post("/v1/chat/completions", chat_body("hi"), h)
        check(f"key {name}", status == want and (want == 200 or json.loads(b)["error"]["type"] == "authentication_error"), (status, b))
    check("health needs no key", s.get("/health")[0] == 200)
    check("rebinding", s.get("/health", {"Host": "evil.example"})[0] == 403)
    check("other origin", s.post("/v1/chat/completions", chat_body("hi"), {**key, "Origin": "http://evil.example"})[0] == 403)
    check("own origin", s.post("/v1/chat/completions", chat_body("hi"), {**key, "Origin": s.base})[0] == 200)
    check("too large", s.post("/v1/chat/completions", b" " * 1200000, key)[0] == 413)

    auth = "Authorization: Bearer secret\r\n"
    metric = s.metric
    s.get = lambda path, headers=None, g=s.get: g(path, {**key, **(headers or {})})
    clients = [raw(s, long, auth) for _ in range(2)]
    check("running", wait(lambda: metric("requests_processing") == 2))
    clients += [raw(s, long, auth) for _ in range(2)]
    check("busy", wait(lambda: metric("requests_processing") == 2 and metric("requests_deferred") == 2))
    status, b, head = s.post("/v1/chat/completions", chat_body("hi"), key, timeout=10)
    check("queue full", status == 429 and "Retry-After" in head and json.loads(b)["error"]["type"] == "rate_limit_error", (status, b))
    check("health while busy", s.get("/health")[0] == 200)
    for c in clients:
        c.close()  # two run, two wait: all are dropped
    check("leavers are dropped", wait(lambda: metric("requests_processing") == 0 and metric("requests_deferred") == 0))
    check("counted", metric("requests_cancelled_total") == 4, metric("requests_cancelled_total"))
    check("answers go on", s.post("/v1/chat/completions", chat_body("hi"), key)[0] == 200)

    # ---- a reader that does not read, senders that do not send
    slow = raw(s, {**long, "stream": True, "max_tokens": 300}, auth)
    silent = s.socket()
    half = s.socket()
    half.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le")
    check("others are served", s.post("/v1/chat/completions", chat_body("hi"), key)[0] == 200)
    for name, c in (("silent", silent), ("half a head", half)):
        c.settimeout(20)
        try:
            data = c.recv(1000)
        except ConnectionError:
            data = b""
        check(f"{name} is closed", data == b"" or b" 408 " in data, data)
    slow.close()
    garbage = s.socket()
    garbage.sendall(b"\x00\xff nonsense\r\n\r\n")
    garbage.close()
    for _ in range(200):
        s.socket().close()
    check("alive", s.post("/v1/chat/completions", chat_body("hi"), key)[0] == 200)
    s.stop()

    # ---- the key from a file, and flags that do not go together
    keyfile = os.path.join(tmp, "key")
    with open(keyfile, "w") as f:
        f.write("from a file\nnot this\n")
    s = Server(model, mmproj, "--api-key-file", keyfile, "--allow-remote-images", "--allowed-media-domains", "example.invalid,.example.org")
    check("key file", [s.post("/v1/chat/completions", chat_body("hi"), {"Authorization": "Bearer " + k})[0] for k in ("from a file", "not this", "")] == [200, 401, 401])
    for url in ("http://example.com/a.png", "http://example.org/a.png", "http://127.0.0.1/"):
        status, b, _ = s.post("/v1/chat/completions", chat_body([{"type": "image_url", "image_url": url}]), {"X-Api-Key": "from a file"})
        check(f"domain {url}", status == 400 and b"--allowed-media-domains" in b, b)
    s.stop()
    open(keyfile, "w").close()
    for flags, word in ((["--api-key-file", keyfile], "--api-key-file"), (["--api-key-file", tmp + "/none"], "--api-key-file"), (["--api-key-file", keyfile, "--api-key", "a"], "exclude"),
                        (["--allowed-media-domains", "example.org"], "--allow-remote-images"), (["--media-path", keyfile], "--media-path"),
                        (["--prune", "iwp", "--keep", "0.5", "--prune-layer", "30"], "--prune-layer 30"), (["--prune", "divprune", "--keep", "0.5", "--prune-layer", "1"], "--prune-layer"),
                        (["--prune", "resize", "--keep", "0.0001"], "resize reaches"), (["--prune", "scope", "--keep", "0.5", "--opt", "cls=1"], "--prune-opt cls=1"),
                        (["--prune", "tome", "--keep-tokens", "1"], "--keep-tokens: method tome reaches"), (["--prune", "tome", "--keep", "0.0001"], "--keep: method tome reaches"),
                        (["--prune", "iwp", "--keep-tokens", "1", "--budget-scope", "tile"], "--keep-tokens 1: each tile"), (["-c", "10"], "--ctx-size 10: the shortest message"),
                        (["--image-max-tokens", "1"], "--image-max-tokens")):
        r = subprocess.run([iwp, "serve", "-m", model, "-mm", mmproj, "--chat-template", "llava-onevision", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        check(f"flags {flags}", r.returncode in (1, 2) and word in r.stderr and r.stderr.count("\n") <= 2, r.stderr)

    s = Server(model, mmproj, "--prune", "iwp", "--keep-tokens", "100000")
    code, log = s.stop()
    check("a count beyond any picture is warned of", code == 0 and "--keep-tokens 100000: a picture has" in log, log)
    s = Server(model, mmproj, "-c", "30", "--prune", "tome", "--keep-tokens", "4")  # of a small picture
    code, log = s.stop()
    check("a context below any picture is warned of", code == 0 and "--ctx-size 30: a picture has" in log, log)
    for flags, warned in (([], True), (["--api-key", "a"], False), (["--host", "127.0.0.2"], False)):  # told before the model is looked for
        r = subprocess.run([iwp, "serve", "-m", tmp + "/none", "--port", "0", "--host", "0.0.0.0", *flags], capture_output=True, text=True, timeout=60)
        check(f"other machines {flags}", ("other machines may ask without a key" in r.stderr) == warned and r.returncode == 1, r.stderr)

    # ---- many at once, with pictures; answers do not depend on the company
    s = Server(model, mmproj, "-np", "4", "--prune", "iwp", "--keep", "50%")
    asks = [([picture(("small.png", "wide.png")[i % 2]), text(f"What is number {i % 5}?")], {"prune": {"method": ("iwp", "random", "none")[i % 3], **({} if i % 3 == 2 else {"keep": 0.3})}})
            for i in range(32)]
    with futures.ThreadPoolExecutor(32) as ex:
        many = list(ex.map(lambda a: s.chat(a[0], **a[1]), asks))
    check("32 at once", all(x[0] == 200 for x in many), [x for x in many if x[0] != 200][:1])
    for i in (0, 1, 2, 17):
        alone = s.chat(asks[i][0], **asks[i][1])[1]
        check(f"same alone {i}", alone["choices"][0]["message"] == many[i][1]["choices"][0]["message"], (alone, many[i]))
    check("default prune", s.chat(asks[0][0])[1]["prune"]["method"] == "iwp")

    # ---- one session, many requests of one client, one of another: the other need not wait for all of them
    one = Server(model, mmproj, "-np", "1", "-c", "200000")
    body = json.dumps(chat_body("count", max_tokens=200, ignore_eos=True)).encode()
    order, asked = [], time.time()

    def client(source):
        with socket.create_connection(("127.0.0.1", one.port), timeout=120, source_address=(source, 0)) as c:
            c.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            while c.recv(65536):
                pass
        order.append(source)
    hold = raw(one, {**long, "stream": True})  # takes the session until all the others wait, however fast the machine is
    check("one runs", wait(lambda: one.metric("requests_processing") == 1))
    with futures.ThreadPoolExecutor(9) as ex:
        many_of_one = [ex.submit(client, "127.0.0.1") for _ in range(8)]
        check("they wait", wait(lambda: one.metric("requests_deferred") == 8))
        other = ex.submit(client, "127.0.0.2")
        check("the other waits too", wait(lambda: one.metric("requests_deferred") == 9))
        hold.close()
        for x in [*many_of_one, other]:
            x.result()
    check("fair between clients", len(order) == 9 and order.index("127.0.0.2") < 6, order)
    check("slots are free again", wait(lambda: [x["state"] for x in json.loads(one.get("/slots")[1])] == ["idle"]), one.get("/slots")[1])
    check("exit", one.stop()[0] == 0)

    # ---- a stream goes on while the picture of another request is decoded, shrunk and encoded
    two = Server(model, mmproj, "-np", "2", "-c", "200000")
    a = raw(two, {**long, "stream": True})
    check("stream runs", wait(lambda: two.metric("requests_processing") == 1))
    times, answer = [], []

    def read():
        try:
            while a.recv(65536):
                times.append(time.time())
        except OSError:
            pass
    reader = threading.Thread(target=read)
    reader.start()
    side = 8000
    chunk = lambda k, d: struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d))
    rows = zlib.compress(b"\0" * (3 * side + 1) * side, 1)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    t0 = time.time()
    status, b = two.chat([{"type": "image_url", "image_url": base64.b64encode(png).decode()}, text("what?")], max_tokens=1)
    t1 = time.time()
    during = [x for x in times if t0 <= x <= t1]
    gap = max(y - x for x, y in zip([t0] + during, during + [t1]))
    check("large picture", status == 200, b)
    print(f"a picture of {side} x {side} took {b['timings']['encode_ms']:.0f} ms; meanwhile a stream had {len(during)} events, the longest gap was {1e3 * gap:.0f} ms")
    check("the stream goes on", len(during) >= 10 and 1e3 * gap < 0.5 * b["timings"]["encode_ms"], (len(during), gap, b["timings"]))
    a.shutdown(socket.SHUT_RDWR)
    a.close()
    reader.join()

    # ---- a short question does not wait for the many pictures and the long prompt of another
    def plain(i, side=384):
        rows = zlib.compress((b"\0" + bytes((i, 255 - i, 7)) * side) * side, 1)
        return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    album = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(plain(i)).decode()}} for i in range(250)]
    reading = lambda: {"encode", "prefill"} & {x["state"] for x in json.loads(two.get("/slots")[1])}
    with futures.ThreadPoolExecutor(1) as ex:
        pictures = ex.submit(two.chat, [*album, text("which?")], max_tokens=1)
        check("the album is read", wait(reading))
        status, b = two.chat("hi", max_tokens=1)
        after = reading()
        check("a question meanwhile", status == 200 and after and not pictures.done(), (status, after, b))
        status, b = pictures.result()
        check("album", status == 200 and b["usage"]["prompt_tokens"] > 10000, b)
    check("exit", two.stop()[0] == 0)

    # ---- the end: a running answer is finished, a new one refused
    c = raw(s, {**chat_body("count", max_tokens=150, ignore_eos=True), "stream": True})
    first = c.recv(1000)
    check("stream began", b"200 OK" in first, first)
    s.process.send_signal(signal.SIGTERM)
    rest = first
    while True:
        try:
            d = c.recv(65536)
        except socket.timeout:
            d = b""
        if not d:
            break
        rest += d
        if b"[DONE]" in rest:
            break
    check("finished after SIGTERM", b"[DONE]" in rest, rest[-300:])
    c.close()
    code = s.process.wait(60)
    check("exit", code == 0, (code, "".join(s.log)[-600:]))

    # ---- meanwhile others are told; a second signal hurries
    s = Server(model, mmproj, "-c", "200000")
    c = raw(s, long)
    check("runs", wait(lambda: s.metric("requests_processing") == 1))
    s.process.send_signal(signal.SIGTERM)
    check("health while ending", wait(lambda: s.get("/health")[0] == 503))
    check("refused while ending", s.post("/v1/chat/completions", chat_body("hi"))[0] == 503)
    s.process.send_signal(signal.SIGTERM)
    c.settimeout(30)
    a = c.recv(2000)
    check("hurried", b" 503 " in a and b"shutting down" in a, a)
    check("exit", s.process.wait(60) == 0, "".join(s.log)[-600:])

    # ---- a connection that was taken is answered, however idle the server is
    s = Server(model, mmproj)
    c = s.socket()
    c.sendall(b"GET /health HTTP/1.1\r\n")
    time.sleep(0.3)
    s.process.send_signal(signal.SIGTERM)
    check("it ends", wait(lambda: any("shutting down" in x for x in s.log)))
    time.sleep(0.1)
    c.sendall(b"Host: 127.0.0.1\r\n\r\n")
    try:
        a = c.recv(2000)
    except ConnectionError as e:
        a = str(e).encode()
    check("answered at the end", b" 503 " in a, a)
    c.close()
    check("exit", s.process.wait(60) == 0, "".join(s.log)[-600:])

    # ---- a place in the queue is free again before the answer is out
    s = Server(model, mmproj, "--queue", "1")
    broken = chat_body([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}])
    codes = [s.post("/v1/chat/completions", broken)[0] for _ in range(400)]
    check("one after the other is never too many", set(codes) == {400}, {c: codes.count(c) for c in set(codes)})
    check("exit", s.stop()[0] == 0)

    # ---- the end while the model is loaded
    for _ in range(5):
        p = subprocess.Popen([iwp, "serve", "-m", model, "-mm", mmproj, "--chat-template", "llava-onevision", "--port", "0"], stderr=subprocess.PIPE, text=True)
        p.stderr.readline()  # listening
        p.send_signal(signal.SIGTERM)
        said = p.communicate(timeout=60)[1]
        check("exit while loading", p.returncode == 0, (p.returncode, said))

    # ---- no time to finish
    s = Server(model, mmproj, "--shutdown-timeout", "0", "-c", "200000")
    c = raw(s, long)
    check("runs", wait(lambda: s.metric("requests_processing") == 1))
    s.process.send_signal(signal.SIGTERM)
    c.settimeout(30)
    a = c.recv(2000)
    check("cut off with 503", b" 503 " in a and b"shutting down" in a, a)
    check("exit", s.process.wait(60) == 0, "".join(s.log)[-600:])
finish()
