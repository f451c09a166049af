"""test_film.py FILM_FRAMES [IWP]: frames of films against the ffmpeg program, which also makes the films.

For every kind of file the pictures of all frames, of a scattered choice, from memory and counted from the
start must be, byte for byte, those of `ffmpeg -vsync 0 -pix_fmt rgb24`; bad files are one line.
"""
import hashlib
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

tool = sys.argv[1]
bad = 0
ran = 0


def check(ok, text):
    global bad, ran
    ran += 1
    if not ok:
        bad += 1
        print("failed:", text, file=sys.stderr)


def ffmpeg(*args):
    return subprocess.run(["ffmpeg", "-v", "error", "-nostdin", "-y", *args], check=True,
                          stdout=subprocess.PIPE).stdout


def frames(*args):
    """Head line (a dict), frames {number: (seconds, sha)} and error line of the tool."""
    r = subprocess.run([tool, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300)
    lines = r.stdout.split("\n")[:-1]
    head = {}
    if lines:
        w = lines[0].split()
        head = dict(zip(w[::2], w[1::2]))
    got = {int(l.split()[0]): (float(l.split()[1]), l.split()[2]) for l in lines[2:]}
    return head, got, r.stderr, r.returncode, lines


def reference(path, size):
    w, h = map(int, size.split("x"))
    raw = ffmpeg("-i", path, "-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    n = w * h * 3
    assert len(raw) % n == 0, (path, len(raw), n)
    return [hashlib.sha256(raw[i:i + n]).hexdigest() for i in range(0, len(raw), n)]


def exact(path, k):
    """One frame as the manual tells to take it."""
    raw = ffmpeg("-i", path, "-vf", f"select=eq(n\\,{k})", "-vsync", "0", "-frames:v", "1",
                 "-f", "rawvideo", "-pix_fmt", "rgb24", "-")
    return hashlib.sha256(raw).hexdigest()


def source(size="322x180", rate=25, seconds=4):
    return ["-f", "lavfi", "-i", f"testsrc2=s={size}:r={rate}:d={seconds}"]


X264 = ["-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p"]


def make(d):
    """(name, may the index be used) of every film."""
    p = lambda n: os.path.join(d, n)
    films = []

    def add(name, *args, index=True):
        ffmpeg(*args, p(name))
        films.append((name, index))

    add("plain.mp4", *source(), *X264, "-g", "30", "-bf", "0")
    add("bframes.mp4", *source(), *X264, "-g", "48", "-bf", "4", "-b_strategy", "0")
    add("pyramid.mkv", *source(), *X264, "-g", "40", "-bf", "8", "-x264-params", "b-pyramid=normal:bframes=8")
    add("opengop.mp4", *source(), *X264, "-g", "24", "-bf", "3", "-x264-params", "open-gop=1:b-adapt=0:scenecut=0")
    add("opengop.mkv", *source(), *X264, "-g", "24", "-bf", "3", "-x264-params", "open-gop=1:b-adapt=0:scenecut=0")
    add("refresh.mp4", *source(), *X264, "-g", "30", "-bf", "0", "-x264-params", "intra-refresh=1")
    add("hevc.mp4", *source(seconds=3), "-c:v", "libx265", "-preset", "ultrafast", "-pix_fmt", "yuv420p",
        "-x265-params", "log-level=none:keyint=20:bframes=3:open-gop=1")
    add("sliced.mov", *source(), *X264, "-g", "25", "-movflags", "+faststart")
    add("fragments.mp4", *source(), *X264, "-g", "25", "-movflags", "+frag_keyframe+empty_moov")
    # variable rate: frames dropped irregularly, time stamps kept
    vfr = ["-vf", "select=not(mod(n\\,3))+not(mod(n\\,7))", "-vsync", "vfr"]
    add("variable.mp4", *source(seconds=8), *vfr, *X264, "-g", "30", "-bf", "3")
    add("variable.mkv", *source(seconds=8), *vfr, *X264, "-g", "30", "-bf", "3")
    add("vp8.webm", *source(), "-c:v", "libvpx", "-b:v", "200k", "-deadline", "realtime", "-cpu-used", "8",
        "-auto-alt-ref", "1", "-lag-in-frames", "16", "-g", "40")
    add("vp9.webm", *source(), "-c:v", "libvpx-vp9", "-b:v", "200k", "-deadline", "realtime", "-cpu-used", "8",
        "-auto-alt-ref", "1", "-lag-in-frames", "16", "-g", "40")
    add("mpeg4.mp4", *source(), "-c:v", "mpeg4", "-g", "30", "-bf", "2", index=False)
    add("mpeg4.avi", *source(), "-c:v", "mpeg4", "-g", "30", index=False)
    add("interlaced.mp4", *source("320x192"), *X264, "-flags", "+ilme+ildct", "-x264-params", "interlaced=1", index=False)
    add("animated.gif", *source("160x90", 10, 3), index=False)
    add("odd.mkv", *source("161x91", 25, 2), "-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv444p", "-g", "20")
    add("ten.mp4", *source("160x90", 25, 2), "-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p10le", "-g", "20")
    add("full.mp4", *source("160x90", 25, 2), "-vf", "scale=out_range=full:out_color_matrix=bt709", "-c:v", "libx264",
        "-preset", "veryfast", "-pix_fmt", "yuvj420p", "-colorspace", "bt709", "-color_range", "pc", "-g", "20")
    add("sound.mp4", *source(), "-f", "lavfi", "-i", "sine=d=4", *X264, "-g", "30", "-c:a", "aac", "-shortest")
    # turned: by a quarter, half, three quarters; with an odd height in 4:2:0 too
    ffmpeg(*source("162x92", 25, 2), *X264, "-g", "20", p("upright.mp4"))
    for turn in (90, 180, 270):
        add(f"turned{turn}.mp4", "-i", p("upright.mp4"), "-c", "copy", "-metadata:s:v:0", f"rotate={turn}")
    # cut in the middle of a group of pictures: an edit list hides what lies before
    add("edited.mp4", "-ss", "1.3", "-i", p("bframes.mp4"), "-c", "copy")
    add("edited-open.mp4", "-ss", "1.3", "-i", p("opengop.mp4"), "-c", "copy")
    films[-1] = ("edited-open.mp4", None)  # either way may be right
    return films


def compare(d, name, index, rng):
    path = os.path.join(d, name)
    head, got, text, code, lines = frames(path, "all")
    check(code == 0 and "frames" in head, f"{name}: {text}")
    if code or "frames" not in head:
        return
    n = int(head["frames"])
    want = reference(path, head["size"])
    check(n == len(want), f"{name}: {n} frames, ffmpeg has {len(want)}")
    if index is not None:
        check((head["counted"] == "0") == index, f"{name}: counted {head['counted']}")
    wrong = [i for i in range(min(n, len(want))) if got.get(i, (0, ""))[1] != want[i]]
    check(not wrong, f"{name}: {len(wrong)} of {n} frames differ from ffmpeg, first {wrong[:5]}")
    times = [got[i][0] for i in sorted(got)]
    check(all(a < b for a, b in zip(times, times[1:])), f"{name}: times {times[:5]}")
    some = sorted(rng.sample(range(n), min(n, 7)) + [0, n - 1])
    pick = ",".join(map(str, some))
    for flags in ([], ["--memory"], ["--threads", "1"], ["--count"]):
        h, g, text, code, l = frames(*flags, path, pick)
        check(code == 0 and h["frames"] == str(n), f"{name} {flags}: {text}")
        wrong = [i for i in some if g.get(i, (0, ""))[1] != want[i]]
        check(not wrong, f"{name} {flags} {pick}: frames {wrong} differ")
        check(len(l) == 2 + len(some), f"{name} {flags}: {len(l) - 2} frames for {len(some)}")
    k = rng.randrange(n)
    _, g, text, _, _ = frames(path, str(k))
    check(g.get(k, (0, ""))[1] == exact(path, k), f"{name}: frame {k} alone differs: {text}")


def bad_files(d):
    p = lambda n: os.path.join(d, n)

    def expect(name, *words, code=1):
        _, _, text, rc, lines = frames(p(name), "0")
        check(rc == code and text.count("\n") == 1 and len(text) < 420, f"{name}: exit {rc}, {text!r}")
        for w in words:
            check(w in text, f"{name}: no '{w}' in {text!r}")

    def write(name, data):
        with open(p(name), "wb") as f:
            f.write(data)

    whole = open(p("plain.mp4"), "rb").read()
    fast = open(p("sliced.mov"), "rb").read()
    write("empty.mp4", b"")
    expect("empty.mp4", "is empty")
    expect("absent.mp4", "No such file")
    write("text.mp4", b"this is no film, not at all\n" * 40)
    expect("text.mp4", "no MP4")
    write("cut.mp4", whole[:len(whole) // 2])  # its tables were at the end
    expect("cut.mp4", "cut.mp4", "moov")
    write("cut.mov", fast[:len(fast) * 2 // 3])  # its tables are there
    expect("cut.mov", "cut off")
    mkv = open(p("pyramid.mkv"), "rb").read()
    write("cut.mkv", mkv[:len(mkv) * 2 // 3])
    expect("cut.mkv", "cut")
    ffmpeg("-f", "lavfi", "-i", "sine=d=1", "-c:a", "aac", p("sound.m4a"))
    expect("sound.m4a", "no video")
    ffmpeg("-f", "lavfi", "-i", "sine=d=1", "-c:a", "libopus", p("sound.webm"))
    expect("sound.webm", "no video")
    # a playlist must never make it open other files
    write("list.mp4", b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n")
    expect("list.mp4", "no MP4")
    write("concat.mp4", b"ffconcat version 1.0\nfile /etc/passwd\n")
    expect("concat.mp4", "no MP4")
    os.mkdir(p("folder.mp4"))
    expect("folder.mp4", "no regular file")
    # claims of enormous frames
    huge = bytearray(whole)
    at = huge.find(b"avc1")
    huge[at + 28:at + 32] = struct.pack(">HH", 65535, 65535)
    write("huge.mp4", bytes(huge))
    _, _, text, rc, _ = frames(p("huge.mp4"), "0")
    check(rc in (0, 1) and text.count("\n") <= 1, f"huge.mp4: {text!r}")
    # claims of millions of frames: in a fragment, in a track, behind a cover of boxes; never the memory for them
    def claims(name, data, *words):
        write(name, bytes(data))
        expect(name, *words)
        pid = subprocess.Popen([tool, p(name), "0"], stderr=subprocess.DEVNULL).pid
        most = os.wait4(pid, 0)[2].ru_maxrss // 1024
        check(most < 600, f"{name}: took {most} MB")

    parts = bytearray(open(p("fragments.mp4"), "rb").read())
    at = parts.rfind(b"trun") + 4
    parts[at:at + 8] = struct.pack(">II", 1, 80_000_000)  # no bytes of its own for any of them
    claims("parts.mp4", parts, "80000", "bytes")
    cover = parts[:]
    at = cover.rfind(b"moof") - 4
    cover[at:at] = struct.pack(">I4s", 16, b"udta") + struct.pack(">I4s", 8, b"free")
    claims("cover.mp4", cover, "80000")
    table = bytearray(fast)
    at = table.find(b"stsz") + 8
    table[at:at + 8] = struct.pack(">II", 1, 80_000_000)  # all of one size
    claims("table.mov", table, "80000")
    deep = b"".join(struct.pack(">I4s", 8 * (40 - i), b"moov") for i in range(40))
    claims("deep.mp4", fast[:fast.find(b"moov") - 4] + deep, "boxes in boxes")
    # as many frames as bytes, in many tracks
    at = fast.find(b"moov") + 4
    end = at + struct.unpack(">I", fast[at - 8:at - 4])[0] - 8
    trak = fast.find(b"trak") - 4
    track = fast[trak:trak + struct.unpack(">I", fast[trak:trak + 4])[0]]
    many = bytearray(fast[:at - 8]) + struct.pack(">I4s", end - at + 8 + 400 * len(track), b"moov") \
        + fast[at:end] + track * 400 + fast[end:]
    claims("many.mov", many, "100 streams")
    # the same where FFmpeg looks, too: free space, metadata, descriptions of samples, a compressed header
    box = lambda kind, *inside: struct.pack(">I4s", 8 + len(b"".join(inside)), kind) + b"".join(inside)
    front, moov, rest = fast[:at - 8], bytes(table[at:end]), fast[end:]
    claims("free.mov", front + box(b"free", moov) + rest, "80000")
    claims("cmov.mov", front + box(b"moov", box(b"cmov", box(b"dcom", b"zlib"), box(
        b"cmvd", struct.pack(">I", len(moov) + 8), zlib.compress(box(b"moov", moov))))) + rest, "compressed")
    size = box(b"stsz", struct.pack(">III", 0, 1, 80_000_000))
    inside = fast[at:trak] + box(b"trak", track[8:], box(b"meta", box(b"hdlr", bytes(25)), size)) + fast[trak + len(track):end]
    claims("meta.mov", front + box(b"moov", inside) + rest, "80000")
    stsd = track.find(b"stsd") - 4
    length = struct.unpack(">I", track[stsd:stsd + 4])[0]
    odd = bytearray(track[:stsd] + box(b"stsd", track[stsd + 8:stsd + length], size) + track[stsd + length:])
    for outer in (b"trak", b"mdia", b"minf", b"stbl"):
        where = odd.find(outer) - 4
        odd[where:where + 4] = struct.pack(">I", struct.unpack(">I", odd[where:where + 4])[0] + len(size))
    claims("stsd.mov", front + box(b"moov", fast[at:trak], odd, fast[trak + len(track):end]) + rest, "none belong")
    claims("moofs.mov", front + box(b"moov", fast[at:trak], track * 90) + rest + box(b"moof") * 100_000, "fragments")
    # sound in samples of one length is indexed by chunks: there may be more of them than bytes, but no endless chunks
    ffmpeg(*source("64x48", 5, 8), "-f", "lavfi", "-i", "anullsrc=r=44100:cl=mono:d=8", "-c:v", "libx264", "-crf", "40", "-pix_fmt", "yuv420p",
           "-c:a", "adpcm_ms", p("sound.mov"))
    sound = bytearray(open(p("sound.mov"), "rb").read())
    at = sound.rfind(b"stsz") + 8
    check(struct.unpack(">I", sound[at + 4:at + 8])[0] > len(sound), "sound.mov: not as many sounds as meant")
    _, got, text, rc, _ = frames(p("sound.mov"), "0,39")
    check(rc == 0 and len(got) == 2, f"sound.mov: {text!r}")
    at = sound.rfind(b"stsc") + 16
    sound[at:at + 4] = struct.pack(">I", 2_100_000_000)
    claims("chunks.mov", sound, "sounds")
    # noise over the pictures themselves: one line or frames, never more
    rng = random.Random(5)
    for name in ("bframes.mp4", "opengop.mkv", "vp9.webm", "hevc.mp4", "animated.gif"):
        data = bytearray(open(p(name), "rb").read())
        for i in range(40):
            data[rng.randrange(len(data) // 4, len(data))] = rng.randrange(256)
        write("noise-" + name, bytes(data))
        _, _, text, rc, _ = frames(p("noise-" + name), "0,1,2,3,20")
        check(rc in (0, 1) and text.count("\n") == rc, f"noise-{name}: exit {rc}, {text!r}")
    zero = bytearray(whole)
    at = zero.find(b"mdat") + 4
    zero[at:at + 200000] = bytes(min(200000, len(zero) - at))
    write("zero.mp4", bytes(zero))
    _, _, text, rc, _ = frames(p("zero.mp4"), "0,5,9")
    check(rc == 1 and text.count("\n") == 1, f"zero.mp4: exit {rc}, {text!r}")


def long_film(d):
    """32 frames of a film that repeats a clip without encoding it again: ten minutes, or with IWP_TEST_LONG an hour of
    1080p, the size that is promised.  Frame k must be the clip's frame k mod n, and memory small."""
    hour = os.environ.get("IWP_TEST_LONG")
    size, minutes, seconds = ("1920x1080", 60, 20) if hour else ("640x360", 10, 5)
    clip, film = os.path.join(d, "clip.mp4"), os.path.join(d, "long.mp4")
    ffmpeg(*source(size, 30, seconds), "-c:v", "libx264", "-preset", "superfast", "-b:v", "300k", "-bf", "3", "-g", "120",
           "-pix_fmt", "yuv420p", clip)
    loops = minutes * 60 // seconds
    ffmpeg("-stream_loop", str(loops - 1), "-i", clip, "-c", "copy", film)
    _, want, text, code, _ = frames(clip, "all")
    check(code == 0 and len(want) == 30 * seconds, f"clip: {text}")
    k = random.Random(9).randrange(len(want))
    check(want[k][1] == exact(clip, k), f"frame {k} of the clip")
    total = loops * len(want)
    pick = [int(i * (total - 1) / 31) for i in range(32)]
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.execv(tool, [tool, film, ",".join(map(str, pick))])
    os.close(write)
    lines = os.fdopen(read).read().split("\n")
    _, status, usage = os.wait4(pid, 0)
    check(status == 0 and lines[0].startswith(f"frames {total} "), f"long film: {lines[0]}")
    wrong = [l.split()[0] for l in lines[2:-1] if l.split()[2] != want[int(l.split()[0]) % len(want)][1]]
    check(len(lines) == 35 and not wrong, f"long film: frames {wrong} differ, {len(lines) - 3} lines")
    if b"__asan_" not in open(tool, "rb").read():
        check(usage.ru_maxrss < 300e3, f"long film: {usage.ru_maxrss / 1e3:.0f} MB")


def without_libraries(d):
    """The libraries come with the first film: when they do not, that is one line."""
    fake = os.path.join(d, "fake")
    os.mkdir(fake)
    for major in range(59, 70):
        open(os.path.join(fake, "libavformat.so.%d" % major), "wb").close()
    r = subprocess.run([tool, os.path.join(d, "plain.mp4"), "0"], capture_output=True, text=True,
                       env=dict(os.environ, LD_LIBRARY_PATH=fake))
    check(r.returncode == 1 and r.stderr.count("\n") == 1 and "films need the FFmpeg libraries: " in r.stderr
          and "libavformat.so" in r.stderr, f"no libraries: {r.returncode} {r.stderr!r}")


def main():
    if not shutil.which("ffmpeg"):
        print("no ffmpeg program: skipped")
        sys.exit(77)
    if "built without FFmpeg" in frames("/dev/null", "0")[2]:
        print("built without the FFmpeg libraries: skipped")
        sys.exit(77)
    rng = random.Random(3)
    with tempfile.TemporaryDirectory() as d:
        for name, index in make(d):
            compare(d, name, index, rng)
        bad_files(d)
        without_libraries(d)
        long_film(d)
    print(f"{ran} checks, {bad} failed")
    sys.exit(bad != 0)


main()
