"""test_sdk.py IWP DATA: the official OpenAI SDK: plain, streamed, pictures as data URIs, extra_body, errors, time-outs."""
import base64
import os
import sys
import time

from serve import Server, check, convert, finish, folder, images

try:
    import openai
except ImportError:
    print("no openai package: skipped")
    sys.exit(77)


def data_uri(name="small.png"):
    return "data:image/png;base64," + base64.b64encode(open(os.path.join(images, name), "rb").read()).decode()


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    return None


with folder() as tmp:
    model, mmproj = convert(tmp)
    s = Server(model, mmproj, "-np", "2", "-c", "200000", "--alias", "tiny", "--api-key", "secret")
    o = openai.OpenAI(base_url=s.base + "/v1", api_key="secret", max_retries=0, timeout=60)
    ask = [{"role": "system", "content": "Be brief."},
           {"role": "user", "content": [{"type": "image_url", "image_url": {"url": data_uri(), "detail": "low"}}, {"type": "text", "text": "What is this?"}]}]
    k = dict(model="tiny", messages=ask, max_tokens=8, temperature=0)
    check("models", [m.id for m in o.models.list().data] == ["tiny"])
    r = o.chat.completions.create(**k)
    c = r.choices[0]
    check("plain", isinstance(c.message.content, str) and c.message.role == "assistant" and c.finish_reason in ("stop", "length")
          and r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens and r.usage.prompt_tokens > 50, r)
    chunks = list(o.chat.completions.create(stream=True, stream_options={"include_usage": True}, **k))
    check("streamed", "".join(x.choices[0].delta.content or "" for x in chunks if x.choices) == c.message.content, chunks)
    check("streamed usage", chunks[-1].usage.completion_tokens == r.usage.completion_tokens and not chunks[-1].choices)
    d = o.chat.completions.create(extra_body={"prune": {"method": "iwp", "keep": 0.222, "report": "tokens"}}, **k).model_dump()
    check("extra_body", 0 < d["prune"]["visual_kept"] < d["prune"]["visual_in"] and d["prune"]["images"][0]["keep"], d)
    lp = o.chat.completions.create(logprobs=True, top_logprobs=2, **k).choices[0].logprobs.content
    check("logprobs", lp and all(x.logprob <= 0 and len(x.top_logprobs) == 2 for x in lp))
    t = o.completions.create(model="tiny", prompt="Once", max_tokens=4, temperature=0)
    check("completions", isinstance(t.choices[0].text, str) and t.usage.completion_tokens <= 4, t)
    with o.chat.completions.with_streaming_response.create(**k) as raw:
        check("request id", raw.headers["x-request-id"].startswith("req-"))

    # ---- errors are the SDK's own kinds
    e = raises(openai.BadRequestError, lambda: o.chat.completions.create(extra_body={"prune": {"method": "nope"}}, **k))
    check("bad request", e and e.status_code == 400 and "nope" in str(e.body), e)
    e = raises(openai.BadRequestError, lambda: o.chat.completions.create(**{**k, "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}]}]}))
    check("remote pictures are refused", e and "--allow-remote-images" in str(e.body), e)
    check("key", raises(openai.AuthenticationError, lambda: o.with_options(api_key="wrong").chat.completions.create(**k)))
    check("no such path", raises(openai.NotFoundError, lambda: o.embeddings.create(model="x", input="a")))
    e = raises(openai.BadRequestError, lambda: list(o.chat.completions.create(stream=True, extra_body={"prune": {"keep": 7}}, **k)))
    check("error of a stream", e and "prune.keep" in str(e.body), e)

    # ---- one who gives up is forgotten
    slow = {**k, "max_tokens": 150000, "extra_body": {"ignore_eos": True}}
    check("time-out", raises(openai.APITimeoutError, lambda: o.with_options(timeout=0.5).chat.completions.create(**slow)))
    stream = o.chat.completions.create(stream=True, **slow)
    for _ in zip(range(3), stream):
        pass
    stream.close()
    s.get = lambda path, headers=None, g=s.get: g(path, {"Authorization": "Bearer secret", **(headers or {})})
    end = time.time() + 20
    while s.metric("requests_processing") > 0 and time.time() < end:
        time.sleep(0.05)
    check("both are gone", s.metric("requests_processing") == 0 and s.metric("requests_cancelled_total") == 2, s.metric("requests_cancelled_total"))

    code, log = s.stop()
    check("exit", code == 0, log[-400:])
finish()
