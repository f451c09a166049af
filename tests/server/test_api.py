"""test_api.py IWP DATA: the endpoints, their fields and errors, pruning per request."""
import base64
import json
import os
import re
import shutil
import subprocess

from serve import Server, chat_body, check, convert, finish, folder, images, iwp, picture, text

with folder() as tmp:
    model, mmproj = convert(tmp)
    media = os.path.join(tmp, "media")
    os.mkdir(media)
    shutil.copy(os.path.join(images, "small.png"), os.path.join(media, "a b.png"))
    os.symlink(mmproj, os.path.join(media, "out.png"))
    s = Server(model, mmproj, "-np", "2", "--alias", "tiny", "--media-path", media)

    # ---- what needs no model
    check("health", json.loads(s.get("/v1/health")[1]) == {"status": "ok"})
    m = json.loads(s.get("/v1/models")[1])
    check("models", len(m["data"]) == 1 and m["data"][0]["id"] == "tiny" and m["data"][0]["meta"]["n_layer"] == 8, m)
    p = json.loads(s.get("/props")[1])
    check("props", {"iwp", "fastv", "random"} <= {x["name"] for x in p["prune"]["methods"]}, p)
    status, body, head = s.get("/")
    check("page", status == 200 and b"<html" in body and "default-src 'none'" in head["Content-Security-Policy"], head)
    for path, method, want in (("/nothing", "GET", 404), ("/v1/chat/completions", "GET", 405), ("/health", "DELETE", 405),
                               ("/../etc/passwd", "GET", 404)):
        status, body, _ = s.request(method, path)
        check(f"{method} {path}", status == want and json.loads(body)["error"]["code"] == want, (status, body))

    status, body, _ = s.post("/v1/chat/completions", b'{"messages": [], "max_tokens": 1, "max_tokens": 2}')
    check("a key twice", status == 400 and json.loads(body)["error"]["message"] == "the body: JSON: key 'max_tokens' appears twice", body)
    status, body, _ = s.post("/v1/chat/completions", chat_body("hi", prune={"keep": "7"}))
    check("a bad budget", status == 400 and json.loads(body)["error"]["message"].startswith("prune.keep: '7' is not"), body)

    # ---- answers
    ask = [picture(), text("What is this?")]
    status, a = s.chat(ask)
    c = a["choices"][0]
    check("plain", status == 200 and isinstance(c["message"]["content"], str) and c["finish_reason"] in ("stop", "length")
          and a["id"].startswith("chatcmpl-") and "prune" not in a, a)
    u = a["usage"]
    check("usage", u["prompt_tokens"] > 50 and u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"], u)
    e = s.stream(ask, stream_options={"include_usage": True})
    chunks = [json.loads(x) for x in e[:-1]]
    check("stream ends", e[-1] == "[DONE]" and chunks[-1]["choices"] == [] and {k: chunks[-1]["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}
          == {k: u[k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}, e[-2:])
    check("stream finish", chunks[-2]["choices"][0]["delta"] == {} and chunks[-2]["choices"][0]["finish_reason"] == c["finish_reason"])
    said = "".join(x["choices"][0]["delta"].get("content") or "" for x in chunks if x["choices"])
    check("stream equals plain", said == c["message"]["content"], (said, c))
    check("no usage unasked", all("usage" not in json.loads(x) for x in s.stream(ask)[:-1]))
    for form in ("string", "raw"):
        b = s.chat([picture(form=form), text("What is this?")])[1]
        check(f"picture as {form}", b["choices"][0]["message"] == c["message"], b)
    status, b = s.chat([text("First"), picture(), text("and then"), picture("wide.png"), text("which?")])
    check("interleaved", status == 200 and b["usage"]["prompt_tokens"] > u["prompt_tokens"], b)
    n = json.loads(s.post("/v1/chat/completions/input_tokens", chat_body(ask))[1])
    check("input_tokens", n["input_tokens"] == u["prompt_tokens"], n)
    t = json.loads(s.post("/tokenize", {"content": "Hello world"})[1])["tokens"]
    check("tokenize", len(t) > 0 and all(isinstance(x, int) for x in t), t)
    whole = json.loads(s.post("/apply-template", chat_body([text("See"), picture(), text("what?")]))[1])["prompt"]
    check("apply-template", whole.startswith("<|im_start|>user <image>") and whole.index("See") < whole.index("what?") and whole.endswith("assistant\n"), whole)
    plain = json.loads(s.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 5, "temperature": 0, "ignore_eos": True})[1])
    check("completions", plain["object"] == "text_completion" and plain["id"].startswith("cmpl-") and isinstance(plain["choices"][0]["text"], str)
          and plain["usage"]["completion_tokens"] == 5, plain)
    body = s.post("/v1/completions", {"prompt": ["Once upon"], "max_tokens": 5, "temperature": 0, "ignore_eos": True, "stream": True})[1].decode()
    parts = [json.loads(x[6:]) for x in body.split("\n\n") if x.startswith("data: {")]
    check("completions streamed", "".join(x["choices"][0]["text"] for x in parts) == plain["choices"][0]["text"] and body.endswith("data: [DONE]\n\n"), body)
    for name, x in (("none", {}), ("empty", {"prompt": ""}), ("two", {"prompt": ["a", "b"]}), ("ids", {"prompt": [1, 2]})):
        check(f"prompt {name}", s.post("/v1/completions", x)[0] == 400)
    for _ in range(100):  # an answer is there a moment before its session is free
        slots = json.loads(s.get("/slots")[1])
        if not any(x["is_processing"] for x in slots):
            break
    check("slots", len(slots) == 2 and all(x["state"] == "idle" and not x["is_processing"] for x in slots), slots)
    status, b = s.chat("hi", unknown_field={"a": 1}, tools=[], user="me")
    check("unknown fields", status == 200, b)
    check("length", s.chat("hi", max_tokens=3, ignore_eos=True)[1]["usage"]["completion_tokens"] == 3)
    check("alias of max_tokens", s.chat("hi", max_completion_tokens=2, ignore_eos=True)[1]["usage"]["completion_tokens"] == 2)
    lp = s.chat("hi", logprobs=True, top_logprobs=3, ignore_eos=True, max_tokens=4)[1]["choices"][0]["logprobs"]["content"]
    check("logprobs", len(lp) == 4 and all(len(x["top_logprobs"]) == 3 and x["top_logprobs"][0]["logprob"] == x["logprob"] for x in lp), lp)
    full = s.chat("Tell me more", max_tokens=12, ignore_eos=True)[1]["choices"][0]["message"]["content"]
    mark = next((full[i:i + 2] for i in range(2, len(full) - 2) if full.find(full[i:i + 2]) == i), None)
    if mark:
        b = s.chat("Tell me more", max_tokens=12, ignore_eos=True, stop=[mark])[1]["choices"][0]
        check("stop", b["message"]["content"] == full[:full.find(mark)] and b["finish_reason"] == "stop", (full, mark, b))

    # ---- pruning
    r = s.chat(ask, prune={"method": "iwp", "keep": 0.25, "report": "tokens"})[1]
    q = r["prune"]
    bits = base64.b64decode(q["images"][0]["keep"])
    h, w = q["images"][0]["grid"]
    kept = sum(bin(x).count("1") for v in q["images"][0].get("views", [q["images"][0]]) for x in base64.b64decode(v["keep"]))
    check("prune", 0 < q["visual_kept"] < q["visual_in"] and len(bits) == (h * w + 7) // 8 and kept <= q["visual_kept"], q)
    check("kept share", abs(q["visual_kept"] / q["visual_in"] - 0.25) < 0.05, q)
    check("usage is unpruned", r["usage"]["prompt_tokens"] == u["prompt_tokens"])
    check("timings are pruned", r["timings"]["prompt_n"] == u["prompt_tokens"] - q["visual_in"] + q["visual_kept"], r["timings"])
    check("keep_tokens", s.chat(ask, prune={"method": "random", "keep_tokens": 9})[1]["prune"]["visual_kept"] == 9)
    p = s.chat(ask, prune={"method": "tome", "keep": 0.5})[1]["prune"]  # merges inside the encoder: a row per block
    check("merged inside the encoder", abs(p["visual_kept"] / p["visual_in"] - 0.5) < 0.05 and p["layer"] is None, p)
    check("block after block", all(x["visual_kept"] >= y["visual_kept"] for x, y in zip(p["stages"], p["stages"][1:])), p)
    check("no report", "prune" not in s.chat(ask, prune={"method": "iwp", "keep": 0.5, "report": "none"})[1])
    check("streamed report", "prune" in json.loads(s.stream(ask, prune={"method": "iwp", "keep": 0.5})[-2]))
    check("tokens per layer", q["layer_tokens"] == [q["visual_in"]] * q["layer"] + [q["visual_kept"]] * (8 - q["layer"]), q)

    # ---- what an earlier prompt did is not done again
    before = {x: s.metric(x) for x in ("image_cache_hits_total", "image_cache_misses_total", "prompt_tokens_cached_total")}
    for budget in (0.3, 0.6):
        x = s.chat(ask, prune={"method": "iwp", "keep": budget})[1]
        check(f"budget {budget} rewinds", x["usage"]["prompt_tokens_details"]["cached_tokens"] == u["prompt_tokens"], x["usage"])
        check("encoded once", x["timings"]["encode_ms"] == 0, x["timings"])
    x = s.chat([picture(), text("And what else?")], prune={"method": "iwp", "keep": 0.6})[1]
    check("another question rewinds", q["visual_in"] < x["usage"]["prompt_tokens_details"]["cached_tokens"] < u["prompt_tokens"], x["usage"])
    x = s.chat(ask, prune={"method": "none"})[1]
    check("no budget rewinds", x["usage"]["prompt_tokens_details"]["cached_tokens"] > q["visual_in"], x["usage"])
    check("and says the same", x["choices"][0]["message"] == c["message"], x)
    check("cache metrics", s.metric("image_cache_hits_total") == before["image_cache_hits_total"] + 4 and 0 < s.metric("image_cache_hit_ratio") < 1
          and s.metric("image_cache_misses_total") == before["image_cache_misses_total"] and s.metric("prompt_tokens_cached_total") > before["prompt_tokens_cached_total"])

    # ---- reports for the page
    at = q["inspect"]
    check("inspect id", re.fullmatch(r"/inspect/[0-9a-f]{32}", at), at)
    status, b, head = s.get(at)
    b = json.loads(b)
    check("inspect", status == 200 and b["prune"]["images"] == q["images"] and b["answer"] == r["choices"][0]["message"]["content"] and b["question"] == "What is this?"
          and b["image"].startswith("data:image/png;base64,") and head["Cache-Control"] == "no-store", str(b)[:300])
    check("inspect in a browser", b"<html" in s.get(at, {"Accept": "text/html"})[1])
    check("unknown report", s.get("/inspect/" + "0" * 32)[0] == 404 and s.get("/inspect/")[0] == 404 and s.get("/inspect/" + "a" * 500)[0] == 404)
    good = {"method": "iwp", "keep": 0.5}
    for name, bad in {"method": {"method": "nope"}, "keep": {**good, "keep": 7}, "zero": {**good, "keep": 0}, "text": {**good, "keep": "x"},
                      "layer": {**good, "layer": 999}, "negative layer": {**good, "layer": -1}, "both": {**good, "keep_tokens": 4},
                      "layer elsewhere": {"method": "divprune", "keep": 0.5, "layer": 2}, "layer of a tower": {"method": "tome", "keep": 0.5, "layer": 2},
                      "opt": {**good, "opts": {"nope": 1}}, "opt value": {**good, "opts": {"lambda": "x"}}, "report": {**good, "report": "all"},
                      "field": {**good, "keeep": 1}, "array": [1]}.items():
        status, b = s.chat(ask, prune=bad)
        check(f"bad prune {name}", status == 400 and "prune" in b["error"]["message"] and b["error"]["type"] == "invalid_request_error", b)

    for bad, field in (({"method": "tome", "keep_tokens": 1}, "prune.keep_tokens: "), ({"method": "tome", "keep": 0.0001}, "prune.keep: "),
                       ({"method": "resize", "keep": 0.0001}, "prune.keep: "), ({"method": "resize", "keep_tokens": 1}, "prune.keep_tokens: "),
                       ({**good, "budget_rule": "layer-average", "keep": 0.0001}, "prune.keep "), ({"method": "iwp", "keep_tokens": 100000}, "prune.keep_tokens 100000: "),
                       ({"method": "divprune", "keep": 0.5, "budget_rule": "layer-average"}, "prune.budget_rule: ")):
        status, b = s.chat(ask, prune=bad)  # what the engine finds out is told in the request's words too
        check(f"field of {bad}", status == 400 and b["error"]["message"].startswith(field) and "--" not in b["error"]["message"], b)

    # ---- files
    status, b = s.chat([{"type": "image_url", "image_url": {"url": "file://a%20b.png"}}, text("What is this?")])
    check("relative file", status == 200 and b["choices"][0]["message"] == c["message"], b)
    status, b = s.chat([{"type": "image_url", "image_url": {"url": "file://" + os.path.join(media, "a b.png")}}])
    check("absolute file", status == 200, b)
    for url in ("file:///etc/passwd", "file://../m.gguf", "file://%2e%2e/m.gguf", "file://out.png", "http://127.0.0.1:1/x.png", "https://example.org/a.png"):
        status, b = s.chat([{"type": "image_url", "image_url": {"url": url}}])
        check(url, status == 400, b)

    # ---- bodies that are wrong
    def msg(content):
        return json.dumps({"messages": [{"role": "user", "content": content}]}).encode()
    png = base64.b64encode(open(os.path.join(images, "small.png"), "rb").read()[:60]).decode()
    for name, body in {"not json": b"{", "empty": b"", "array": b"[]", "no messages": b"{}", "no list": b'{"messages":3}', "none": b'{"messages":[]}',
                       "role": b'{"messages":[{"role":"robot","content":"a"}]}', "content": b'{"messages":[{"role":"user"}]}',
                       "number": msg(5), "part": msg([5]), "part type": msg([{"type": "smell"}]), "video": msg([{"type": "video_url", "video_url": {"url": "x"}}]),
                       "utf-8": b'{"messages":[{"role":"user","content":"\xff"}]}', "deep": b"[" * 5000, "twice": b'{"messages":[],"messages":[]}',
                       "bad base64": msg([{"type": "image_url", "image_url": "data:image/png;base64,@@@@"}]),
                       "no image": msg([{"type": "image_url", "image_url": "data:image/png;base64,AAAA"}]),
                       "cut image": msg([{"type": "image_url", "image_url": "data:image/png;base64," + png}]),
                       "n": b'{"messages":[{"role":"user","content":"a"}],"n":2}', "temp": b'{"messages":[{"role":"user","content":"a"}],"temperature":-1}',
                       "max": b'{"messages":[{"role":"user","content":"a"}],"max_tokens":"x"}', "stop": b'{"messages":[{"role":"user","content":"a"}],"stop":3}'}.items():
        status, b, _ = s.post("/v1/chat/completions", body)
        check(f"body {name}", status == 400 and json.loads(b)["error"]["message"], (status, b))
        bad = json.loads(body.decode(errors="replace")) if name in ("role", "video") else None
        if bad:  # an error before the first token has its own status in a stream too
            bad["stream"] = True
            check(f"streamed {name}", s.post("/v1/chat/completions", bad)[0] == 400)
    check("content type", s.post("/v1/chat/completions", b"{}", {"Content-Type": "text/plain"})[0] == 415)

    # ---- the SDK, when it is there
    try:
        import openai
    except ImportError:
        openai = None
    if openai:
        o = openai.OpenAI(base_url=s.base + "/v1", api_key="x", max_retries=0, timeout=60)
        k = dict(model="tiny", messages=[{"role": "user", "content": ask}], max_tokens=6, temperature=0)
        check("SDK plain", o.chat.completions.create(**k).choices[0].message.content == c["message"]["content"])
        check("SDK stream", "".join(x.choices[0].delta.content or "" for x in o.chat.completions.create(stream=True, **k) if x.choices) == said)
        d = o.chat.completions.create(extra_body={"prune": {"method": "iwp", "keep": 0.25}}, **k).model_dump()
        check("SDK prune", d["prune"]["visual_kept"] == q["visual_kept"], d)
        try:
            o.chat.completions.create(extra_body={"prune": {"method": "nope"}}, **k)
            check("SDK error", False, "accepted")
        except openai.BadRequestError as x:
            check("SDK error", x.status_code == 400 and "nope" in str(x.body), x.body)

    # ---- a second server on the same port
    try:
        again = subprocess.run([iwp, "serve", "-m", model, "-mm", mmproj, "--port", str(s.port), "-t", "1"],
                               capture_output=True, text=True, timeout=20)
        check("taken port", again.returncode == 1 and "in use" in again.stderr, (again.returncode, again.stderr[-300:]))
    except subprocess.TimeoutExpired:
        check("taken port", False, "both listen")

    # ---- metrics, log, end
    text_ = s.get("/metrics")[1].decode()
    check("metrics format", all(re.match(r'^(# (HELP|TYPE) iwp:\S+ .+|iwp:[a-z0-9_]+(\{[a-z]+="[^"]*"\})? \S+)$', x) for x in text_.splitlines()), text_)
    check("metrics count", s.metric("requests_total") > 10 and s.metric("requests_failed_total") > 10 and s.metric("tokens_predicted_total") > 10
          and 'visual_tokens_total{stage="kept"}' in text_)
    code, log = s.stop()
    check("exit", code == 0, (code, log[-600:]))
    check("ids are not logged", at not in log and "GET /inspect/ 200" in log, log[-600:])
    check("access log", re.search(r"^127\.0\.0\.1 POST /v1/chat/completions 200 \d+ ms req-[0-9a-f]{20}$", log, re.M), log[-600:])
finish()
