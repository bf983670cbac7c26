// @ts-check
// Attention over the patches of an image: a heat map on its pixels, and which patch a pointer is on.

import { paint } from './colours.js';
import { element } from './elements.js';

/** @typedef {import('./weights.js').Grid} Grid */
/** @typedef {{left: number, top: number, width: number, height: number}} Box  as shares of the image */

/** @param {Grid} grid @returns {Box} */
function boxOf(grid) {
  const [left, top, right, bottom] = grid.box;
  return { left, top, width: right - left, height: bottom - top };
}

/** @param {HTMLElement} target @param {Box} box */
function place(target, box) {
  for (const edge of /** @type {const} */ (['left', 'top', 'width', 'height'])) target.style[edge] = `${100 * box[edge]}%`;
}

/** Paints the weights of one query over all keys. @param {Float32Array} weights @param {Grid} grid */
export function paintPatches(weights, grid) {
  const canvas = /** @type {HTMLCanvasElement} */ (element('heat'));
  paint(canvas, weights.subarray(grid.first, grid.first + grid.rows * grid.columns), grid.columns, grid.rows);
  place(canvas, boxOf(grid));
}

/** Outlines the patch that is the query; none for another position. @param {Grid | null} grid @param {number} position */
export function outlinePatch(grid, position) {
  const index = grid ? position - grid.first : -1;
  element('query-patch').hidden = index < 0;
  if (!grid || index < 0) return;
  const { left, top, width, height } = boxOf(grid);
  const size = { width: width / grid.columns, height: height / grid.rows };
  const column = index % grid.columns;
  const row = Math.floor(index / grid.columns);
  place(element('query-patch'), { left: left + column * size.width, top: top + row * size.height, ...size });
}

/** The position of the patch under a pointer; -1 outside. @param {PointerEvent} event @param {Grid} grid */
export function patchUnder(event, grid) {
  const frame = element('frame').getBoundingClientRect();
  const { left, top, width, height } = boxOf(grid);
  const column = Math.floor((((event.clientX - frame.left) / frame.width - left) / width) * grid.columns);
  const row = Math.floor((((event.clientY - frame.top) / frame.height - top) / height) * grid.rows);
  const inside = column >= 0 && column < grid.columns && row >= 0 && row < grid.rows;
  return inside ? grid.first + row * grid.columns + column : -1;
}
