"""make_film_corpus.py: the small films of tests/fuzz/corpus/film, made by the ffmpeg program."""
import os
import subprocess

here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "film")
os.makedirs(here, exist_ok=True)


def make(name, *args, size="48x32", rate=5, seconds=2):
    src = ["-f", "lavfi", "-i", f"testsrc=s={size}:r={rate}:d={seconds}"]
    subprocess.run(["ffmpeg", "-v", "error", "-y", *src, "-fflags", "+bitexact", "-flags", "+bitexact", *args,
                    os.path.join(here, name)], check=True)


h264 = ["-c:v", "libx264", "-preset", "veryslow", "-crf", "40", "-pix_fmt", "yuv420p", "-g", "4", "-bf", "2"]
make("h264.mp4", *h264)
make("fragments.mp4", *h264, "-movflags", "+frag_keyframe+empty_moov")
make("opengop.mkv", *h264, "-x264-params", "open-gop=1")
make("vp8.webm", "-c:v", "libvpx", "-b:v", "10k", "-auto-alt-ref", "1", "-lag-in-frames", "5")
make("vp9.webm", "-c:v", "libvpx-vp9", "-b:v", "10k", "-lag-in-frames", "5")
make("mjpeg.mov", "-c:v", "mjpeg", "-q:v", "31", "-pix_fmt", "yuvj420p", seconds=1)
make("mpeg4.avi", "-c:v", "mpeg4", "-q:v", "31", "-g", "4", "-bf", "2", seconds=1)
make("animated.gif", "-vf", "split[a][b];[a]palettegen=max_colors=4[p];[b][p]paletteuse", seconds=1)
turned = os.path.join(here, "h264.mp4")
subprocess.run(["ffmpeg", "-v", "error", "-y", "-ss", "0.5", "-i", turned, "-c", "copy", "-metadata:s:v:0", "rotate=90",
                os.path.join(here, "turned.mp4")], check=True)
