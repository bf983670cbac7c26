// @ts-check
// Shows one attention map at a time: tokens with lines between them, small maps of all heads, one large map, a ranking.
// Everything is drawn from `state` by `render` (another map was chosen) or `light` (another row or column is in focus).

import { colours, inkOn, onSchemeChange, paint } from './colours.js';
import { element, make, roam, select, walked } from './elements.js';
import { outlinePatch, paintPatches, patchUnder } from './picture.js';
import { largestOf, percent, readable, unpack } from './weights.js';

/** @typedef {import('./weights.js').Site} Site */
/** @typedef {import('./weights.js').AttentionMap} AttentionMap */
/** @typedef {{row: number, column: number}} Cell  -1 = none */

/** @type {{steps: number, maps: AttentionMap[]}} */
const data = JSON.parse(element('data').textContent ?? '');
const nowhere = { row: -1, column: -1 };
const state = { map: data.maps[0], site: data.maps[0].sites[0], head: -1, pinned: nowhere, focus: nowhere };
/** @type {Float32Array[]} the maps of all heads, then their mean */
let heads = [];
/** @type {{keys: HTMLElement[], queries: HTMLElement[], columns: HTMLElement[], rows: HTMLElement[]}} */
const labels = { keys: [], queries: [], columns: [], rows: [] };

/** Where lines may end, measured when the page is laid out: measuring at every focus would make large maps slow.
 *  @type {Record<'keys' | 'queries', {x: number, top: number, bottom: number}[]>} */
const anchors = { keys: [], queries: [] };

const mostLines = 300; // with nothing in focus, more of them cannot be read
const faintest = 0.04; // of the largest weight; fainter lines are not drawn
const mostColumns = 400; // of a large map; the heat map on the image shows more patches

const shown = () => heads[state.head < 0 ? heads.length - 1 : state.head];

// ── building: what changes when another map, site or head is chosen ─────────────────────────────────────────────────

/** @param {string} id @param {string[]} names @param {number} chosen */
function fill(id, names, chosen) {
  select(id).replaceChildren(...names.map((name, index) => new Option(name, String(index), false, index === chosen)));
  /** @type {HTMLElement} */ (select(id).parentElement).hidden = names.length < 2;
}

const models = [...new Set(data.maps.map((map) => map.model))];
const examples = () => data.maps.filter((map) => map.model === state.map.model);

/** @param {AttentionMap} map @param {string} siteName  stays where it was, if the new map has such a site */
function choose(map, siteName = state.site.name) {
  state.map = map;
  state.site = map.sites.find((site) => site.name === siteName) ?? map.sites[0];
  if (state.head >= state.site.heads.length) state.head = -1;
  state.pinned = state.focus = nowhere;
  heads = unpack(state.site, data.steps);
  render();
}

function render() {
  fill('model', models, models.indexOf(state.map.model));
  fill('example', examples().map((map) => map.name), examples().indexOf(state.map));
  fill('site', state.map.sites.map((site) => site.name), state.map.sites.indexOf(state.site));
  element('input').textContent = state.map.name;
  element('answer').textContent = state.map.answer;
  element('exchange').classList.toggle('long', state.map.name.length + state.map.answer.length > 240);
  const grid = state.site.key_grid;
  const isPicture = Boolean(grid && state.map.image);
  element('picture').hidden = !isPicture;
  element('flow-section').hidden = isPicture;
  element('closer').hidden = state.site.columns.length > mostColumns;
  if (grid && isPicture) {
    /** @type {HTMLImageElement} */ (element('image')).src = state.map.image;
    const cell = grid.rows === 1 ? 'frame' : 'patch';
    element('picture-help').textContent = state.site.query_grid
      ? `Point at a ${cell} to see which others it attends to.`
      : `Choose a token to see where it attends to, or point at a ${cell}.`;
  }
  const named = state.site.query_grid ? state.site.query_grid.first : state.site.rows.length;
  buildTokens('keys', isPicture ? [] : state.site.columns, (column) => ({ row: -1, column }));
  buildTokens('queries', isPicture ? state.site.rows.slice(0, named) : state.site.rows, (row) => ({ row, column: -1 }));
  element(isPicture ? 'picture-queries' : 'queries').replaceChildren(...labels.queries);
  for (const side of /** @type {const} */ (['columns', 'rows'])) {
    labels[side] = state.site[side].map((token) => make('span', '', readable(token)));
    labels[side].forEach((label, index) => { label.dir = 'auto'; label.title = state.site[side][index]; });
    element(side).replaceChildren(...labels[side]);
  }
  element('columns').classList.toggle('short', state.site.columns.every((token) => [...readable(token)].length < 3));
  buildHeads();
  updateLayout();
  showHead();
}

/** @param {'keys' | 'queries'} side @param {string[]} texts @param {(index: number) => Cell} cell */
function buildTokens(side, texts, cell) {
  labels[side] = texts.map((text, index) => {
    const token = make('button', 'token');
    token.append(make('span', '', readable(text)), make('small', ''));
    token.tabIndex = index === 0 ? 0 : -1;
    token.addEventListener('pointerenter', () => setFocus(cell(index)));
    token.addEventListener('pointerleave', () => setFocus(state.pinned));
    token.addEventListener('focus', () => token.matches(':focus-visible') && pin(cell(index)));
    token.addEventListener('click', () => pin(cell(index)));
    return token;
  });
  element(side).replaceChildren(...labels[side]);
}

function buildHeads() {
  const made = [-1, ...state.site.heads.keys()].map((head) => {
    const weights = heads[head < 0 ? state.site.heads.length : head];
    const button = make('button', 'head');
    const canvas = document.createElement('canvas');
    paint(canvas, weights, state.site.columns.length, state.site.rows.length);
    canvas.classList.toggle('few', Math.max(canvas.width, canvas.height) <= 60);
    const caption = make('span', '', head < 0 ? 'Mean' : `Head ${state.site.heads[head]}`);
    caption.append(make('small', '', `≤ ${percent(largestOf(weights))} %`));
    button.append(canvas, caption);
    button.setAttribute('role', 'radio');
    button.setAttribute('aria-label', head < 0 ? 'Mean over heads' : `Head ${state.site.heads[head]}`);
    button.addEventListener('click', () => chooseHead(head));
    return button;
  });
  element('heads').replaceChildren(...made);
}

/** @param {number} head */
function chooseHead(head) {
  state.head = head;
  showHead();
}

function showHead() {
  const { rows, columns, name } = state.site;
  [...element('heads').children].forEach((button, index) => {
    const chosen = index === state.head + 1;
    button.setAttribute('aria-checked', String(chosen));
    /** @type {HTMLElement} */ (button).tabIndex = chosen ? 0 : -1;
  });
  const which = state.head < 0 ? 'mean over heads' : `head ${state.site.heads[state.head]}`;
  element('note').hidden = !state.map.note;
  element('note').textContent = `${state.map.note}${othersNote()}`;
  element('map-title').textContent = `${name}, ${which}`;
  element('map').setAttribute('aria-label', `${name}, ${which}: ${rows.length} queries, ${columns.length} keys`);
  paint(/** @type {HTMLCanvasElement} */ (element('cells')), shown(), columns.length, rows.length);
  paint(/** @type {HTMLCanvasElement} */ (element('scale')), Float32Array.from({ length: 256 }, (_, i) => i / 255), 256, 1);
  element('largest').textContent = `${percent(largestOf(shown()))} %`;
  light();
}

/** The share of attention that goes to keys that are not shown. */
function othersNote() {
  const { others } = state.site;
  if (!others.length) return '';
  const share = state.head < 0 ? others.reduce((sum, share) => sum + share, 0) / others.length : others[state.head];
  return ` The keys that are not shown receive ${percent(share)} % of the attention here.`;
}

function updateLayout() {
  const available = element('board').clientWidth - element('rows').offsetWidth - 2;
  const cell = Math.max(14, Math.min(46, Math.floor(available / state.site.columns.length)));
  document.documentElement.style.setProperty('--cell', `${cell}px`);
  element('map').style.width = `${cell * state.site.columns.length}px`;
  element('map').style.height = `${cell * state.site.rows.length}px`;
  const frame = element('flow').getBoundingClientRect();
  for (const side of /** @type {const} */ (['keys', 'queries'])) {
    anchors[side] = labels[side].map((token) => token.getBoundingClientRect()).map(({ left, width, top, bottom }) => (
      { x: left + width / 2 - frame.left, top: top - frame.top, bottom: bottom - frame.top }));
  }
}

// ── focus: what changes with another row or column in focus ─────────────────────────────────────────────────────

/** @param {Cell} cell */
function setFocus(cell) {
  if (cell.row === state.focus.row && cell.column === state.focus.column) return;
  state.focus = cell;
  light();
}
/** @param {Cell} cell */
function pin(cell) {
  state.pinned = cell;
  setFocus(cell);
}

/** The weights of the row in focus, else of the column, over the other side's tokens. */
function sharesInFocus() {
  const { row, column } = state.focus;
  const width = state.site.columns.length;
  if (row >= 0) return [...shown().subarray(row * width, (row + 1) * width)];
  if (column >= 0) return state.site.rows.map((_, index) => shown()[index * width + column]);
  return [];
}

function light() {
  const { row, column } = state.focus;
  const shares = sharesInFocus();
  for (const [side, index] of /** @type {const} */ ([['keys', column], ['queries', row], ['columns', column], ['rows', row]])) {
    labels[side].forEach((label, i) => label.classList.toggle(side in anchors ? 'chosen' : 'lit', i === index));
  }
  shade('keys', row >= 0 ? shares : []);
  shade('queries', row < 0 ? shares : []);
  lightPicture();
  for (const [id, index, edge] of /** @type {const} */ ([['band', row, 'top'], ['pillar', column, 'left']])) {
    element(id).hidden = index < 0;
    element(id).style.setProperty(edge, `calc(var(--cell) * ${index})`);
  }
  drawLines();
  read(shares);
}

/** The weights of the query in focus on the image, else the mean over queries. */
function lightPicture() {
  const { rows, columns, query_grid: queries, key_grid: keys } = state.site;
  if (!keys || element('picture').hidden) return;
  const { row } = state.focus;
  const weights = new Float32Array(columns.length);
  shown().forEach((weight, cell) => {
    if (row < 0) weights[cell % columns.length] += weight / rows.length;
    else if (Math.floor(cell / columns.length) === row) weights[cell % columns.length] = weight;
  });
  paintPatches(weights, keys);
  outlinePatch(queries, row);
  const largest = percent(largestOf(weights.subarray(keys.first)));
  const query = row < 0 ? 'Mean over queries' : `“${readable(rows[row])}” attends to`;
  element('picture-title').textContent = `${query}; largest weight ${largest} %`;
}

/** @param {'keys' | 'queries'} side @param {number[]} shares  none = plain */
function shade(side, shares) {
  const table = colours();
  const largest = largestOf(shown()) || 1;
  labels[side].forEach((token, index) => {
    token.classList.toggle('shaded', shares.length > 0);
    /** @type {HTMLElement} */ (token.lastChild).textContent = shares[index] >= 0.005 ? percent(shares[index]) : '';
    if (!shares.length) return;
    const step = Math.round((255 * shares[index]) / largest);
    token.style.setProperty('--shade', `rgb(${table.subarray(4 * step, 4 * step + 3).join(' ')})`);
    token.style.setProperty('--on-shade', inkOn(step));
  });
}

function drawLines() {
  if (element('flow-section').hidden) return;
  const width = state.site.columns.length;
  const weights = shown();
  const largest = largestOf(weights) || 1;
  const { row, column } = state.focus;
  const strength = row >= 0 || column >= 0 ? 1 : 0.6; // all lines at once would be too loud
  /** @type {number[]} */
  let cells = [];
  for (let i = 0; i < weights.length; i++) {
    const inFocus = row >= 0 ? Math.floor(i / width) === row : column < 0 || i % width === column;
    if (inFocus && weights[i] >= faintest * largest) cells.push(i);
  }
  if (cells.length > mostLines && row < 0 && column < 0) cells = [];
  const paths = cells.map((cell) => {
    const { x: x1, bottom: y1 } = anchors.keys[cell % width];
    const { x: x2, top: y2 } = anchors.queries[Math.floor(cell / width)];
    const middle = (y1 + y2) / 2;
    const path = document.createElementNS('http://www.w3.org/2000/svg', 'path');
    path.setAttribute('d', `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`);
    path.setAttribute('stroke-opacity', (strength * weights[cell] / largest).toFixed(3));
    path.setAttribute('stroke-width', (1 + (2.5 * weights[cell]) / largest).toFixed(2));
    return path;
  });
  element('lines').replaceChildren(...paths);
}

/** Describes what the query in focus attends to, or which queries attend to the key. @param {number[]} shares */
function read(shares) {
  const { row, column } = state.focus;
  const { rows, columns } = state.site;
  if (row < 0 && column < 0) {
    element('reading').textContent = 'Largest attention weights';
    rank(shown(), (cell) => `${readable(rows[Math.floor(cell / columns.length)])} → ${readable(columns[cell % columns.length])}`);
    return;
  }
  const others = row >= 0 ? columns : rows;
  element('reading').textContent =
    row < 0 ? `“${readable(columns[column])}” is attended to by`
    : column < 0 ? `“${readable(rows[row])}” attends to`
    : `“${readable(rows[row])}” attends to “${readable(columns[column])}”: ${percent(shares[column])} %`;
  rank(shares, (index) => readable(others[index]));
}

/** The largest shares, each with its name and a bar. @param {ArrayLike<number>} shares @param {(index: number) => string} name */
function rank(shares, name) {
  const best = [...Array(shares.length).keys()].sort((a, b) => shares[b] - shares[a]).slice(0, 8);
  element('ranking').replaceChildren(...best.filter((index) => shares[index] >= 0.0005).map((index) => {
    const item = make('li', '');
    const bar = make('i', '');
    bar.style.setProperty('--share', `${100 * shares[index]}%`);
    item.append(make('bdi', '', name(index)), make('span', '', `${percent(shares[index])} %`), bar);
    return item;
  }));
}

// ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────

/** @param {PointerEvent} event @returns {Cell} */
function cellUnder(event) {
  const frame = element('map').getBoundingClientRect();
  /** @param {number} share @param {number} count */
  const index = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
  return {
    row: index((event.clientY - frame.top) / frame.height, state.site.rows.length),
    column: index((event.clientX - frame.left) / frame.width, state.site.columns.length),
  };
}

/** The query patch under the pointer, or where queries are words, the key patch. @param {PointerEvent} event @returns {Cell} */
function patchCell(event) {
  const { query_grid: queries, key_grid: keys } = state.site;
  const grid = queries ?? keys;
  const position = grid ? patchUnder(event, grid) : -1;
  if (position < 0 || (queries && position >= state.site.rows.length)) return state.pinned;
  return queries ? { row: position, column: -1 } : { row: -1, column: position };
}

/** @param {KeyboardEvent} event */
function walkMap(event) {
  const upright = event.key === 'ArrowUp' || event.key === 'ArrowDown';
  const { row, column } = state.focus;
  const next = upright ? walked(event.key, row, state.site.rows.length) : walked(event.key, column, state.site.columns.length);
  if (next === undefined) return;
  event.preventDefault();
  pin(upright ? { row: next, column } : { row: Math.max(row, 0), column: next });
  for (const label of [labels.rows[state.focus.row], labels.columns[state.focus.column]]) {
    label?.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
}

/** @param {KeyboardEvent} event */
function shortcut(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const count = state.site.heads.length + 1;
  if (event.key === 'Escape') pin(nowhere);
  if (event.key === '[') chooseHead(((state.head + count) % count) - 1);
  if (event.key === ']') chooseHead(((state.head + 2) % count) - 1);
}

select('model').addEventListener('change', () => {
  const ofModel = data.maps.filter((map) => map.model === models[Number(select('model').value)]);
  choose(ofModel.find((map) => map.name === state.map.name) ?? ofModel[0]);
});
select('example').addEventListener('change', () => choose(examples()[Number(select('example').value)]));
select('site').addEventListener('change', () => choose(state.map, state.map.sites[Number(select('site').value)].name));
element('map').addEventListener('pointermove', (event) => setFocus(cellUnder(event)));
element('map').addEventListener('pointerleave', () => setFocus(state.pinned));
element('map').addEventListener('click', (event) => pin(cellUnder(/** @type {PointerEvent} */ (event))));
element('map').addEventListener('keydown', walkMap);
element('frame').addEventListener('pointermove', (event) => setFocus(patchCell(event)));
element('frame').addEventListener('pointerleave', () => setFocus(state.pinned));
element('frame').addEventListener('click', (event) => pin(patchCell(/** @type {PointerEvent} */ (event))));
element('image').addEventListener('load', (event) => {
  const { naturalWidth, naturalHeight } = /** @type {HTMLImageElement} */ (event.target);
  element('image').classList.toggle('few', Math.max(naturalWidth, naturalHeight) < 128);
});
roam('keys');
roam('picture-queries');
roam('queries');
roam('heads', (index) => chooseHead(index - 1));
addEventListener('keydown', shortcut);
new ResizeObserver(() => { updateLayout(); drawLines(); }).observe(document.body);
onSchemeChange(render);
choose(state.map);
