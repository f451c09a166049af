"""The request bodies of lmms-eval and VLMEvalKit against `iwp serve`.  They were recorded between the tools
and a running server (docs/SERVER.md has the commands); pictures of more than 2 kB were shrunk afterwards.

replay/lmms-eval-*.json: lmms_eval 0.7.3 with openai 3.49.0: its models `openai` (pictures first; frames of a film; a film as
a file:// address; the name of a reasoning model), `async_openai`, and `openai` with --force_simple (text first).
replay/vlmevalkit-*.json: ms-vlmeval 0.0.20 (VLMEvalKit's package on PyPI) with requests 2.34.2: GPT4V (one picture, several,
text alone under a system message, the name of a reasoning model) and LMDeployAPI (a picture, a film)."""
import http.client

from serve import Server, check, convert, data, finish, folder, images, iwp  # noqa: F401
import base64
import json
import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))
OPENAI = {"Accept-Encoding": "gzip, deflate", "Connection": "keep-alive", "authorization": "Bearer none", "accept": "application/json",
          "content-type": "application/json", "user-agent": "OpenAI/Python 3.49.0", "x-stainless-lang": "python",
          "x-stainless-package-version": "3.49.0", "x-stainless-os": "Linux", "x-stainless-arch": "x64", "x-stainless-runtime": "CPython",
          "x-stainless-runtime-version": "3.11.7", "x-stainless-async": "false", "x-stainless-retry-count": "0",
          "x-stainless-read-timeout": "600"}
REQUESTS = {"User-Agent": "python-requests/2.34.2", "Accept-Encoding": "gzip, deflate", "Accept": "*/*",
            "Connection": "keep-alive", "Content-Type": "application/json", "Authorization": "Bearer sk-none"}

with folder() as t:
    model, mmproj = convert(t)
    server = Server(model, mmproj, "--prune", "iwp", "--keep", "0.5")
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)  # both keep it open
    for name in sorted(os.listdir(os.path.join(HERE, "replay"))):
        with open(os.path.join(HERE, "replay", name), "rb") as f:
            body = f.read()
        link.request("POST", "/v1/chat/completions", body, OPENAI if name.startswith("lmms") else REQUESTS)
        r = link.getresponse()
        answer = json.loads(r.read())
        if b'"file:///' in body:  # a file of the server's machine: only below --media-path
            check(name, r.status == 400 and "--media-path" in answer["error"]["message"], answer)
            continue
        if b'"data:video/' in body and r.status == 400 and "FFmpeg" in answer["error"]["message"]:
            print(name + ": this build reads no films")
            continue
        check(name, r.status == 200 and r.getheader("Content-Type").startswith("application/json"), answer)
        if r.status != 200:
            continue
        # what the adapters read
        choice = answer["choices"][0]
        check(name + " answer", isinstance(choice["message"]["content"], str) and choice["message"]["role"] == "assistant" and
              choice["finish_reason"] in ("stop", "length") and len(answer["choices"]) == 1, answer)
        u = answer["usage"]
        check(name + " usage", 0 < u["completion_tokens"] <= 16 and u["prompt_tokens"] + u["completion_tokens"] == u["total_tokens"],
              answer)
        # the same parts from another hand
        doc = json.loads(body)
        more = {"temperature": 0} if "temperature" not in doc else {}
        status, own = server.post("/v1/chat/completions", {"messages": doc["messages"], "max_tokens": 16, **more})[:2]
        own = json.loads(own)
        check(name + " again", status == 200 and own["choices"][0]["message"] == choice["message"] and
              own["usage"]["prompt_tokens"] == u["prompt_tokens"],
              (choice, own))
        # and `iwp run` sees the same prompt, for bodies that begin with one picture
        content = doc["messages"][-1]["content"]
        if isinstance(content, str) or [c["type"] for c in content] != ["image_url", "text"]:
            continue
        file = os.path.join(t, "picture")
        with open(file, "wb") as f:
            f.write(base64.b64decode(content[0]["image_url"]["url"].split(",")[1]))
        p = subprocess.run([iwp, "run", "-m", model, "-mm", mmproj, "--chat-template", "llava-onevision", "-t", "1", "--image", file,
                            "-p", content[1]["text"], "-n", "1", "--prune", "iwp", "--keep", "0.5", "--json"],
                           capture_output=True, text=True)
        check(name + " beside iwp run", u["prompt_tokens"] == json.loads(p.stdout)["tokens"]["prompt"], (u, p.stdout))
    link.close()
    server.stop()
finish()
