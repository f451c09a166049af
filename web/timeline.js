// The frames of a video as a strip: each with its kept tokens, its time and how many were kept.  The film stays in
// the browser: it is opened here a second time and wound to the times the server's report names.
'use strict';

const timeline = {film: null, turn: Promise.resolve(), shots: new Map()};

function filmOf(url) {
  timeline.film = make('video', {muted: '', preload: 'auto', playsinline: ''});
  timeline.shots = new Map();
  return new Promise((done) => {
    timeline.film.addEventListener('loadeddata', () => done(true), {once: true});
    timeline.film.addEventListener('error', () => done(false), {once: true});
    timeline.film.src = url;
  });
}

// One frame as a small canvas, null when the browser cannot show the film.  Two sides share the film: one seek at a time.
function shotAt(seconds, width) {
  timeline.turn = timeline.turn.then(() => wind(seconds, width));
  return timeline.turn;
}

async function wind(seconds, width) {
  const film = timeline.film;
  if (!film || film.error || !film.videoWidth) return null;
  if (timeline.shots.has(seconds)) return timeline.shots.get(seconds);
  await new Promise((done) => {
    const timer = setTimeout(done, 2000);
    film.addEventListener('seeked', () => { clearTimeout(timer); done(); }, {once: true});
    film.currentTime = seconds + 1e-3;
  });
  const c = make('canvas', {width, height: Math.max(1, Math.round(width * film.videoHeight / film.videoWidth))});
  c.getContext('2d').drawImage(film, 0, 0, c.width, c.height);
  timeline.shots.set(seconds, c);
  return c;
}

function keptOf(view) {
  const [rows, cols] = view.grid, bits = atob(view.keep), kept = [];
  for (let i = 0; i < rows * cols; i++) kept.push(bits.charCodeAt(i >> 3) >> (i & 7) & 1);
  return kept;
}

function paintShot(shot, view, image) {
  const width = 160, height = Math.max(1, Math.round(width * image.height / image.width));
  const c = make('canvas', {width, height}), g = c.getContext('2d'), [rows, cols] = view.grid;
  g.fillStyle = colour('soft') || '#888';
  g.fillRect(0, 0, width, height);
  if (shot) g.drawImage(shot, 0, 0, width, height);
  g.fillStyle = 'rgb(10 12 16 / 0.78)';
  keptOf(view).forEach((kept, i) => {
    const x = i % cols, y = Math.floor(i / cols), fx = width / image.width, fy = height / image.height;
    if (!kept) g.fillRect(view.x[x] * fx, view.y[y] * fy, (view.x[x + 1] - view.x[x]) * fx + 0.5, (view.y[y + 1] - view.y[y]) * fy + 0.5);
  });
  return c;
}

// Fills `root` with the strip of one report's video.
async function drawTimeline(root, image) {
  const views = image.views || [image], times = image.seconds || image.frames || [];
  const token = root.token = {};
  const strip = make('ol', {class: 'strip', 'aria-label': 'frames of the video'});
  root.replaceChildren(strip);
  for (let i = 0; i < views.length; i++) {
    const shot = image.seconds ? await shotAt(times[i], 160) : null;
    if (root.token !== token) return; // a newer report came
    const kept = keptOf(views[i]).reduce((a, b) => a + b, 0), n = views[i].grid[0] * views[i].grid[1];
    const item = make('li', {title: `${kept} of ${n} tokens kept`}), bar = make('span', {class: 'share'});
    bar.style.width = (100 * kept / n).toFixed(1) + '%';
    item.append(paintShot(shot, views[i], image), bar, make('small', {}, image.seconds ? times[i].toFixed(1) + ' s' : `#${times[i] ?? i}`));
    strip.append(item);
  }
}
