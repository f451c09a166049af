// The inspector: sends the same question with one or two budgets, streams the answers and draws which
// cells of the picture were kept.  Plain DOM, no framework; talks to this server only.
'use strict';

const $ = (id) => document.getElementById(id);
const state = {picture: null, url: '', name: '', layers: 0, running: null, key: '', whole: null, methods: []};
const sides = [];

function make(tag, attributes, text) {
  const svg = ['svg', 'rect', 'path', 'title'].includes(tag);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
  for (const [k, v] of Object.entries(attributes || {})) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();
const ms = (v) => v >= 1000 ? (v / 1000).toFixed(2) + ' s' : v.toFixed(v < 10 ? 1 : 0) + ' ms';
const headers = () => ({'Content-Type': 'application/json', ...(state.key ? {Authorization: 'Bearer ' + state.key} : {})});

// ---- one side: method, budget, result

class Side {
  constructor(method, keep) {
    this.root = $('side').content.firstElementChild.cloneNode(true);
    const q = (c) => this.root.querySelector('.' + c);
    for (const c of ['method', 'keep', 'share', 'layer', 'picture', 'timeline', 'global', 'frame', 'answer', 'facts', 'bars', 'counts', 'error', 'curl', 'budget', 'layers', 'about'])
      this[c] = q(c);
    this.preset = method;
    this.keep.value = keep;
    this.report = null;
    this.keep.addEventListener('input', () => this.show());
    this.keep.addEventListener('change', () => this.again());
    this.method.addEventListener('change', () => { this.show(); this.again(); });
    this.layer.addEventListener('change', () => this.again());
    this.curl.addEventListener('click', () => this.copy());
    $('sides').append(this.root);
  }

  fill(methods) {
    this.method.replaceChildren(make('option', {value: 'none'}, 'none (all tokens)'),
      ...methods.map((m) => make('option', {value: m.name, title: m.title}, m.name)));
    this.method.value = methods.some((m) => m.name === this.preset) ? this.preset : 'none';
    this.layer.max = state.layers - 1;
    this.show();
  }

  show() {
    const off = this.method.value === 'none';
    this.share.textContent = off ? '100 %' : this.keep.value + ' %';
    const m = state.methods.find((x) => x.name === this.method.value);
    this.keep.disabled = off;
    this.layer.disabled = off || !m || m.layer === null; // others do not cut inside the decoder
    this.about.textContent = off ? 'every visual token goes through every layer' : m ? `${m.title}${m.layer === null ? '' : `, cuts before layer ${m.layer}`}` : '';
  }

  prune() {
    if (this.method.value === 'none') return {method: 'none', report: 'tokens'};
    const p = {method: this.method.value, keep: this.keep.value / 100, report: 'tokens'};
    if (this.layer.value !== '' && !this.layer.disabled) p.layer = Number(this.layer.value);
    return p;
  }

  body(url) {
    const content = [{type: 'text', text: $('question').value}];
    if (url) content.unshift(state.film ? {type: 'video_url', video_url: {url}} : {type: 'image_url', image_url: {url}});
    return {messages: [{role: 'user', content}], max_tokens: Number($('length').value) || 48, temperature: 0, stream: true, prune: this.prune()};
  }

  // A new budget asks again; the picture is encoded already, so only the decoder runs.
  again() {
    if (!this.report && !this.asked) return;
    if (state.running) { state.next = this; state.running.abort(); } else run([this]);
  }

  // A command that runs as it is, next to the picture's file.
  command() {
    const mark = '@@picture@@', type = /^data:([^;]+)/.exec(state.url)?.[1];
    const body = JSON.stringify(this.body(state.url ? mark : '')).replace(/[\\`$]/g, '\\$&');
    const file = "'" + state.name.replaceAll("'", "'\\''") + "'";
    const auth = state.key ? ' -H "Authorization: Bearer $KEY"' : '';
    return `curl -N ${location.origin}/v1/chat/completions -H 'Content-Type: application/json'${auth} -d @- <<JSON\n`
      + body.replace(mark, `data:${type};base64,$(base64 -w0 ${file})`) + '\nJSON\n';
  }

  async copy() {
    try {
      await navigator.clipboard.writeText(this.command());
      this.curl.textContent = 'Copied';
    } catch { this.curl.textContent = 'The browser does not allow copying'; }
    setTimeout(() => { this.curl.textContent = 'Copy as curl'; }, 1500);
  }

  clear() {
    this.answer.textContent = this.error.textContent = '';
    for (const e of [this.facts, this.bars, this.counts]) e.replaceChildren();
    this.report = null;
    this.draw();
  }

  async ask(signal) {
    this.clear();
    this.asked = true;
    this.answer.textContent = '…';
    let first = true;
    const r = await fetch('v1/chat/completions', {method: 'POST', headers: headers(), body: JSON.stringify(this.body(state.url)), signal});
    if (!r.ok) {
      const e = await r.json().catch(() => ({}));
      if (r.status === 401) $('key-field').hidden = false;
      throw new Error(e.error ? e.error.message : 'status ' + r.status);
    }
    for await (const event of events(r.body)) {
      if (event.error) throw new Error(event.error.message);
      const text = event.choices?.[0]?.delta?.content;
      if (text) {
        this.answer.textContent = (first ? '' : this.answer.textContent) + text;
        first = false;
      }
      if (event.timings) this.finish(event);
    }
    if (first) this.answer.textContent = '(nothing said)';
  }

  finish(event) {
    const p = event.prune, t = event.timings;
    this.report = {prune: p, timings: t};
    if (p && p.method === 'none') state.whole = {prefill: t.prefill_ms, decode: t.predicted_per_token_ms};
    const saved = p && p.prefill_flops_full > 0 ? 1 - p.prefill_flops / p.prefill_flops_full : 0;
    const facts = p ? [['visual tokens', `${p.visual_kept} of ${p.visual_in} kept` + (p.layer === null ? '' : `, from layer ${p.layer}`)],
      ['prefill work', saved > 0 ? `${(100 * saved).toFixed(0)} % saved` : 'all of it'],
      ['cache', `${(p.kv_bytes / 1048576).toFixed(1)} of ${(p.kv_bytes_full / 1048576).toFixed(1)} MiB`]] : [];
    if (p?.equivalent_tokens !== undefined && p.visual_kept < p.visual_in) facts.splice(1, 0, ['as many as', `${Math.round(p.equivalent_tokens)} in every layer`]);
    facts.push(['first token', ms(t.time_to_first_token_ms)], ['speed', t.predicted_per_second.toFixed(1) + ' tokens/s']);
    this.facts.replaceChildren(...facts.flatMap(([k, v]) => [make('dt', {}, k), make('dd', {}, v)]));
    this.stages();
    this.draw();
    bars();
  }

  // Visual tokens in each decoder layer.
  stages() {
    const p = this.report.prune, n = state.layers;
    if (!p || !n || !p.visual_in) return;
    const svg = make('svg', {viewBox: `0 0 ${n} 10`, preserveAspectRatio: 'none', role: 'img', 'aria-label': 'visual tokens per layer'});
    for (let l = 0; l < n; l++) {
      const have = p.layer_tokens[l];
      const h = Math.max(0.2, 10 * have / p.visual_in);
      const bar = make('rect', {x: l + 0.08, y: 10 - h, width: 0.84, height: h, fill: colour(have < p.visual_in ? 'mark' : 'soft')});
      bar.append(make('title', {}, `layer ${l}: ${have} tokens`));
      svg.append(bar);
    }
    this.counts.replaceChildren(make('p', {}, `visual tokens in layers 0 to ${n - 1}`), svg);
  }

  // The finest grid large; a global view, when the model has one too, small beside it.
  draw() {
    const image = state.picture, m = this.report?.prune?.images?.[0];
    this.frame.hidden = !image;
    if (!image) return;
    const coarse = !state.film && m?.views?.length > 1 ? m.views[0] : null;
    if (state.film && m?.grid) drawTimeline(this.timeline, m);
    else this.timeline.replaceChildren();
    this.paint(this.picture, 1000, m, m);
    this.global.parentElement.hidden = !coarse;
    if (coarse) this.paint(this.global, 420, m, coarse);
    this.picture.setAttribute('aria-label', m ? `the picture, ${m.visual_kept} of ${m.visual_in} tokens kept` : 'the picture');
  }

  paint(c, size, m, view) {
    const image = state.picture, scale = Math.min(1, size / Math.max(image.naturalWidth, image.naturalHeight));
    c.width = Math.max(1, Math.round(image.naturalWidth * scale));
    c.height = Math.max(1, Math.round(image.naturalHeight * scale));
    const g = c.getContext('2d');
    g.drawImage(image, 0, 0, c.width, c.height);
    if (!view || !view.grid) return;
    const [rows, cols] = view.grid, bits = atob(view.keep), heat = $('heat').checked && view.scores ? atob(view.scores) : null;
    const fx = c.width / m.width, fy = c.height / m.height, cut = m.visual_kept < m.visual_in;
    for (let y = 0; y < rows; y++)
      for (let x = 0; x < cols; x++) {
        const i = y * cols + x, kept = bits.charCodeAt(i >> 3) >> (i & 7) & 1;
        const x0 = view.x[x] * fx, y0 = view.y[y] * fy, w = (view.x[x + 1] - view.x[x]) * fx, h = (view.y[y + 1] - view.y[y]) * fy;
        if (w <= 0 || h <= 0) continue;
        if (heat) {
          const v = heat.charCodeAt(i) / 255; // dark violet to yellow
          g.fillStyle = `hsl(${280 - 230 * v} ${60 + 35 * v}% ${22 + 40 * v}% / 0.72)`;
          g.fillRect(x0, y0, w + 0.5, h + 0.5);
        } else if (!kept) {
          g.fillStyle = 'rgb(10 12 16 / 0.8)';
          g.fillRect(x0, y0, w + 0.5, h + 0.5);
        }
        if (kept && cut && (heat || rows * cols < 5000)) {
          g.strokeStyle = heat ? '#fff' : 'rgb(245 184 61 / 0.6)';
          g.lineWidth = heat ? 1.5 : 1;
          g.strokeRect(x0 + 0.5, y0 + 0.5, w - 1, h - 1);
        }
      }
  }
}

async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    text += value;
    for (let end; (end = text.indexOf('\n\n')) >= 0; text = text.slice(end + 2)) {
      const event = text.slice(0, end);
      if (event.startsWith('data: ') && event !== 'data: [DONE]') yield JSON.parse(event.slice(6));
    }
  }
}

// Both sides on one scale.  Behind a bar stands what the same took without pruning, once that was seen.
function bars() {
  const shown = sides.filter((s) => s.report);
  const parts = (s) => {
    const t = s.report.timings;
    return [['encode', t.encode_ms], ['prefill', t.prefill_ms - t.select_ms, state.whole?.prefill], ['select', t.select_ms],
      ['decode', t.predicted_ms, state.whole && state.whole.decode * t.predicted_n]];
  };
  const most = Math.max(1, ...shown.flatMap((s) => parts(s).flatMap((p) => [p[1], p[2] || 0])));
  for (const s of shown)
    s.bars.replaceChildren(...parts(s).map(([name, v, whole]) => {
      const row = make('div', {class: 'bar'}), svg = make('svg', {viewBox: '0 0 100 2', preserveAspectRatio: 'none'});
      const ghost = whole && s.report.prune?.method !== 'none';
      if (ghost) svg.append(make('rect', {width: 100 * whole / most, height: 2, fill: colour(name), opacity: 0.25}));
      svg.append(make('rect', {y: 0.3, width: Math.max(0.4, 100 * v / most), height: 1.4, fill: colour(name)}));
      row.append(make('span', {}, name), svg, make('span', {}, name === 'encode' && v === 0 ? 'cached' : ms(v)));
      if (ghost) row.title = `${ms(whole)} with all tokens`;
      return row;
    }), ...(state.whole && s.report.prune?.method !== 'none' ? [make('p', {class: 'hint'}, 'pale: the same with all tokens')] : []));
}

// ---- asking

async function run(list) {
  if (state.running) return;
  if (!$('question').value.trim()) { $('note').textContent = 'A question is needed.'; return; }
  state.running = new AbortController();
  state.key = $('key').value;
  $('ask').disabled = true;
  $('stop').disabled = false;
  $('note').textContent = 'running…';
  try {
    state.next = null;
    for (const s of list) { // one after the other, so that their times can be compared
      try { await s.ask(state.running.signal); } catch (e) {
        if (s.answer.textContent === '…') s.answer.textContent = '';
        s.error.textContent = e.name !== 'AbortError' ? e.message : state.next ? '' : 'stopped';
        if (e.name === 'AbortError') break;
      }
    }
  } finally {
    state.running = null;
    $('ask').disabled = false;
    $('stop').disabled = true;
    $('note').textContent = '';
  }
  if (state.next) await run([state.next]);
}

const visible = () => $('two').checked ? sides : sides.slice(0, 1);

function take(file) {
  const film = file?.type.startsWith('video/');
  if (!film && !file?.type.startsWith('image/')) { $('note').textContent = 'That is no picture and no film.'; return; }
  const reader = new FileReader();
  reader.onload = () => film ? useFilm(reader.result, file) : use(reader.result, file.name);
  reader.readAsDataURL(file);
}

// A film: its first frame is the picture, the film itself goes with the question.
async function useFilm(url, file) {
  const seen = await filmOf(URL.createObjectURL(file));
  const poster = (seen && await shotAt(0, 640)) || make('canvas', {width: 320, height: 180});
  if (!seen) $('note').textContent = 'The browser cannot show this film; the server may still read it.';
  use(poster.toDataURL('image/png'), file.name, () => { state.url = url; state.film = true; });
}

function use(url, name, done) {
  const image = new Image();
  image.onload = () => {
    state.picture = image;
    state.url = url;
    state.name = name;
    state.film = false;
    state.whole = null;
    $('thumb').src = url;
    $('thumb').alt = name;
    $('thumb').hidden = false;
    $('hint').hidden = true;
    $('note').textContent = '';
    for (const s of sides) { s.asked = false; s.clear(); }
    done?.();
  };
  image.onerror = () => { $('note').textContent = 'The browser cannot read that picture.'; };
  image.src = url;
}

// A scene to try without a file at hand.
function sample() {
  const c = make('canvas', {width: 448, height: 336}), g = c.getContext('2d');
  const sky = g.createLinearGradient(0, 0, 0, 220);
  sky.addColorStop(0, '#4c8fd6');
  sky.addColorStop(1, '#cfe6f7');
  for (const [fill, path] of [[sky, [0, 0, 448, 220]], ['#5f9a4a', [0, 210, 448, 126]], ['#8a4b2f', [150, 140, 120, 90]], ['#efe4c8', [195, 180, 30, 50]]]) {
    g.fillStyle = fill;
    g.fillRect(...path);
  }
  g.fillStyle = '#a33327';
  g.beginPath();
  g.moveTo(140, 142); g.lineTo(210, 85); g.lineTo(280, 142);
  g.fill();
  for (const [x, y, r, fill] of [[370, 60, 28, '#ffd84a'], [340, 190, 34, '#2f6b35'], [70, 280, 22, '#d23c3c']]) {
    g.fillStyle = fill;
    g.beginPath();
    g.arc(x, y, r, 0, 7);
    g.fill();
  }
  use(c.toDataURL('image/png'), 'sample.png');
}

async function load() {
  try {
    const r = await fetch('props', {headers: headers()});
    const p = await r.json();
    if (r.status === 401) $('key-field').hidden = false;
    if (!r.ok) throw new Error(p.error.message);
    $('model').textContent = p.model_alias;
    state.layers = p.n_layer;
    state.methods = p.prune.methods;
    for (const s of sides) s.fill(p.prune.methods);
    $('note').textContent = '';
    await stored();
  } catch (e) {
    $('note').textContent = e.message;
    if ($('key-field').hidden) setTimeout(load, 2000);
  }
}

// ?inspect=ID: an answer that was given elsewhere.
async function stored() {
  const id = new URLSearchParams(location.search).get('inspect');
  if (!id || state.shown) return;
  const r = await fetch('inspect/' + encodeURIComponent(id), {headers: headers()}), a = await r.json();
  if (!r.ok) { $('note').textContent = a.error.message; state.shown = true; return; }
  state.shown = true;
  const side = sides[0], p = a.prune;
  const show = () => {
    $('two').checked = false;
    sides[1].root.hidden = true;
    side.method.value = p.method;
    side.keep.value = Math.max(1, Math.round(100 * p.visual_kept / (p.visual_in || 1)));
    side.show();
    if (a.question) $('question').value = a.question;
    side.answer.textContent = a.answer;
    side.finish(a);
    $('note').textContent = `The answer ${a.id} of ${new Date(1000 * a.created).toLocaleTimeString()}.`;
  };
  if (a.image) use(a.image, 'picture', show); else show();
}

sides.push(new Side('iwp', 22), new Side('none', 50));
$('form').addEventListener('submit', (e) => { e.preventDefault(); run(visible()); });
$('stop').addEventListener('click', () => state.running?.abort());
$('sample').addEventListener('click', sample);
$('file').addEventListener('change', (e) => take(e.target.files[0]));
$('two').addEventListener('change', () => { sides[1].root.hidden = !$('two').checked; });
$('heat').addEventListener('change', () => sides.forEach((s) => s.draw()));
$('key').addEventListener('change', () => { state.key = $('key').value; load(); });
$('question').addEventListener('keydown', (e) => { if (e.key === 'Enter' && !e.shiftKey) { e.preventDefault(); run(visible()); } });
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape') state.running?.abort();
  if (e.target.closest('input, textarea, select') || e.ctrlKey || e.metaKey || e.altKey) return;
  const click = {h: 'heat', c: 'two', s: 'sample'}[e.key];
  if (click) $(click).click();
  if (e.key === '/') { e.preventDefault(); $('question').focus(); }
});
for (const type of ['dragover', 'dragleave', 'drop'])
  document.addEventListener(type, (e) => {
    e.preventDefault();
    $('drop').classList.toggle('over', type === 'dragover');
    if (type === 'drop') take(e.dataTransfer.files[0]);
  });
document.addEventListener('paste', (e) => { const f = [...e.clipboardData.files][0]; if (f) take(f); });
load();
