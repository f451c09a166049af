"""Films in requests: data URIs, input_video, files below --media-path, the number of frames, bad ones.

usage: test_video.py PROGRAM DATA        (standard library only; needs the ffmpeg program, else skipped)"""
import base64
import glob
import os
import shutil
import subprocess
import sys

if not shutil.which("ffmpeg"):
    print("no ffmpeg program: skipped")
    sys.exit(77)

from serve import Server, check, convert, data as DATA, finish, folder, text  # noqa: E402


def main():
    with folder() as d:
        serve(d)
    finish()


def serve(d):
    media = os.path.join(d, "films")
    os.makedirs(media)
    frames = sorted(glob.glob(os.path.join(DATA, "golden/vectors/llava-ov/images/video/*.png")))
    film = os.path.join(media, "film.mov")
    subprocess.run(["ffmpeg", "-v", "error", "-framerate", "2", "-i", os.path.join(os.path.dirname(frames[0]), "%02d.png"),
                    "-c:v", "png", film], check=True)
    data = base64.b64encode(open(film, "rb").read()).decode()
    with open(os.path.join(media, "list.txt"), "w") as f:
        f.write("/etc/hostname\n")
    os.symlink("/etc", os.path.join(media, "out"))
    s = Server(*convert(d), "--media-path", media)
    try:
        run(s, film, data)
    finally:
        s.stop()


def run(s, film, data):
    ask = text("What happens?")
    prune = {"method": "iwp", "keep": 0.25, "report": "tokens"}

    def video(part, **fields):
        return s.chat([part, ask], prune=prune, **fields)

    uri = {"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + data}}
    some = {"media_io_kwargs": {"video": {"num_frames": 8}}}
    status, a = video(uri, **some)
    if status != 200 and "without FFmpeg" in str(a):
        print("built without the FFmpeg libraries: skipped")
        sys.exit(77)
    check("data URI", status == 200, a)
    q = a["prune"]
    check("8 frames of 16 tokens and a newline", q["visual_in"] == 8 * 16 + 1, q)
    check("one image with a view for each frame", len(q["images"]) == 1 and len(q["images"][0]["views"]) == 8, str(q)[:200])
    check("budget over all frames", q["visual_kept"] == 32, q["visual_kept"])
    for name, part in {"string": {"type": "video_url", "video_url": "data:video/mp4;base64," + data},
                       "input_video data": {"type": "input_video", "input_video": {"data": data}},
                       "input_video url": {"type": "input_video", "input_video": {"url": "data:video/quicktime;base64," + data}},
                       "file": {"type": "video_url", "video_url": {"url": "file://film.mov"}},
                       "absolute file": {"type": "video_url", "video_url": {"url": "file://" + film}}}.items():
        before = s.metric("image_cache_misses_total")
        status, b = video(part, **some)
        check(name, status == 200 and b["choices"][0]["message"] == a["choices"][0]["message"]
              and b["prune"]["images"] == q["images"], str(b)[:300])
        check(name + " is encoded once", s.metric("image_cache_misses_total") == before)
    status, b = video(uri, media_io_kwargs={"video": {"num_frames": 4}})
    check("4 frames", status == 200 and b["prune"]["visual_in"] == 4 * 16 + 1, b)
    status, b = video(uri, media_io_kwargs={"video": {"fps": 1}})
    check("1 frame a second of 4", status == 200 and b["prune"]["visual_in"] == 4 * 16 + 1, b)
    status, b = video(uri)
    check("32 frames by default", status == 200 and b["prune"]["visual_in"] == 32 * 16 + 1, b)

    raw = base64.b64decode(data)
    for name, bad in {"cut": raw[:len(raw) // 2], "text": b"no film at all" * 20, "empty": b"", "four": b"AAAA"}.items():
        status, b = video({"type": "video_url", "video_url": {"url": "data:video/mp4;base64," + base64.b64encode(bad).decode()}})
        check("bad film: " + name, status == 400 and b["error"]["message"] and "\n" not in b["error"]["message"], b)
    for url in ("file://list.txt", "file://.", "file://out/hostname", "file:///etc/passwd", "file://../m.gguf", "http://127.0.0.1:1/x.mp4"):
        status, b = video({"type": "video_url", "video_url": {"url": url}})
        check(url, status == 400, b)
    for name, kw in {"number": {"num_frames": 1.5}, "huge": {"num_frames": 10 ** 9}, "text": {"fps": "x"}}.items():
        status, b = video(uri, media_io_kwargs={"video": kw})
        check("bad media_io_kwargs " + name, status == 400, b)
    status, b = s.chat([{"type": "input_video", "input_video": {}}, ask])
    check("empty part", status == 400, b)
    # frames as pictures, as lmms-eval sends them
    pics = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(open(f, "rb").read()).decode()}}
            for f in sorted(glob.glob(os.path.join(DATA, "golden/vectors/llava-ov/images/video/*.png")))[:3]]
    status, b = s.chat([*pics, ask], prune=prune)
    check("frames as pictures", status == 200 and len(b["prune"]["images"]) == 3, str(b)[:200])
    check("still alive", s.get("/health")[0] == 200)


main()
