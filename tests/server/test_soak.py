"""test_soak.py IWP DATA: 32 clients at once for a minute (IWP_TEST_LONG=1: an hour), with the shipped model when it is in the cache, else
the tiny one: pictures, budgets, streams.  No request fails; memory does not grow after the warm-up; how long /health took is
printed, with the time the host took from this machine (a virtual one's "steal") in all and during the slowest of them, so that its
pauses can be told from ours.  IWP_SOAK_SECONDS sets another length."""
import concurrent.futures as futures
import multiprocessing
import os
import random
import time

from serve import Server, chat_body, check, convert, finish, folder, images, picture, text

seconds = float(os.environ.get("IWP_SOAK_SECONDS") or (3600 if os.environ.get("IWP_TEST_LONG") == "1" else 60))
cache = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "iwp", "models")
shipped = [os.path.join(cache, x) for x in ("iwp-photo.gguf", "iwp-photo-mmproj.gguf")]


def rss(pid):
    for line in open(f"/proc/{pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def stolen():
    """Milliseconds, of all cores together, in which the host ran something else."""
    fields = open("/proc/stat").readline().split()
    return int(fields[8]) * 1e3 / os.sysconf("SC_CLK_TCK")


with folder() as tmp:
    real = all(map(os.path.exists, shipped))
    model, mmproj = shipped if real else convert(tmp)
    s = Server(model, mmproj, "-np", "4", "--inspect", "5", template=None if real else "llava-onevision")
    end = time.time() + seconds
    failed, done = [], [0]

    def watch(pipe):
        """In a process of its own: 32 clients share this one's interpreter."""
        health, memory, bad = [], [], 0
        while time.time() < end:
            host, t0 = stolen(), time.time()
            bad += s.get("/health")[0] != 200
            t1 = time.time()
            health.append(((t1 - t0) * 1e3, stolen() - host))
            memory.append((time.time(), rss(s.process.pid)))
            time.sleep(0.2)
        pipe.send((health, memory, bad))

    def client(i):
        r = random.Random(i)
        while time.time() < end:
            content = [text(f"What is number {r.randrange(50)}?")]
            if r.random() < 0.7:
                content.insert(0, picture(r.choice(("small.png", "wide.png"))))
            fields = {"max_tokens": r.choice((1, 4, 12)), "stream": r.random() < 0.5}
            if r.random() < 0.6:
                fields["prune"] = {"method": r.choice(("iwp", "fastv", "random", "divprune")), "keep": r.choice((0.1, 0.222, 0.5)), "report": r.choice(("none", "summary", "tokens"))}
            try:
                status, body, _ = s.post("/v1/chat/completions", chat_body(content, **fields), timeout=600)
            except OSError as e:
                status, body = 0, str(e).encode()
            if status != 200 or (fields["stream"] and not body.endswith(b"data: [DONE]\n\n")):
                failed.append((status, body[:200]))
            done[0] += 1

    host = stolen()
    seen, pipe = multiprocessing.Pipe(False)
    watcher = multiprocessing.get_context("fork").Process(target=watch, args=(pipe,), daemon=True)
    watcher.start()
    with futures.ThreadPoolExecutor(32) as ex:
        list(ex.map(client, range(32)))
    health, memory, bad = seen.recv()
    watcher.join()
    host = stolen() - host
    check("no request fails", not failed, failed[:3])
    check("always healthy", bad == 0, bad)
    check("all were counted", s.metric("requests_total") == done[0] and s.metric("requests_failed_total") == 0, (done, s.metric("requests_total")))
    # The first 40 % is warm-up: caches and graphs of all sizes are made there.
    start = memory[0][0]
    span = memory[-1][0] - start
    early = [m for t, m in memory if 0.4 * span <= t - start < 0.6 * span]
    late = [m for t, m in memory if t - start >= 0.8 * span]
    ours = sum(ms - gone > 50 for ms, gone in health)
    slowest = ", ".join(f"{ms:.0f} ({gone:.0f})" for ms, gone in sorted(health)[:-6:-1])
    health = sorted(ms for ms, _ in health)
    print(f"{'iwp-photo' if real else 'tiny model'}, 32 clients, {seconds:.0f} s: {done[0]} requests, {s.metric('tokens_predicted_total') / seconds:.1f} tokens/s, "
          f"{s.metric('n_busy_slots_per_decode'):.2f} sessions per round; /health median {health[len(health) // 2]:.1f} ms, p99 {health[int(0.99 * len(health))]:.1f} ms, "
          f"max {health[-1]:.1f} ms, {sum(h > 50 for h in health)} of {len(health)} above 50 ms; memory {min(early):.0f} then {max(late):.0f} MiB; picture cache {100 * s.metric('image_cache_hit_ratio'):.0f} % hits")
    print(f"the host took {host / 1e3:.1f} s of the cores; the slowest /health, ms (of which the host took): {slowest}; {ours} above 50 ms without its pauses")
    check("memory is flat", max(late) < 1.05 * max(early) + 24, (early, late))
    check("health", health[len(health) // 2] < 1000, health[-5:])  # 50 ms is the aim; a shared machine has its own pauses
    code, log = s.stop()
    check("exit", code == 0, log[-400:])
finish()
