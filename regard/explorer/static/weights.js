// @ts-check
// The page's data, unpacked: weights from base64, and numbers and tokens as people read them.

/** @typedef {{rows: number, columns: number, first: number, box: number[]}} Grid */
/** @typedef {{name: string, heads: number[], others: number[], rows: string[], columns: string[], weights: string,
 *             query_grid: Grid | null, key_grid: Grid | null}} Site */
/** @typedef {{model: string, name: string, answer: string, note: string, image: string, sites: Site[]}} AttentionMap */

/** @param {Site} site @param {number} steps  that make a weight of one @returns all heads, then their mean */
export function unpack(site, steps) {
  const bytes = Uint8Array.from(atob(site.weights), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const size = site.rows.length * site.columns.length;
  const mean = new Float32Array(size);
  const maps = site.heads.map((_, head) => {
    const weights = new Float32Array(size);
    for (let i = 0; i < size; i++) {
      weights[i] = view.getUint16(2 * (head * size + i), true) / steps;
      mean[i] += weights[i] / site.heads.length;
    }
    return weights;
  });
  return [...maps, mean];
}

/** @param {Float32Array} weights */
export const largestOf = (weights) => weights.reduce((most, weight) => Math.max(most, weight), 0);
/** @param {number} weight */
export const percent = (weight) => (weight >= 0.0995 || weight === 0 ? (100 * weight).toFixed(0) : (100 * weight).toFixed(1));
/** White space made visible. @param {string} token */
export const readable = (token) => token.replace(/\n/g, '⏎').replace(/\t/g, '⇥').replace(/^\s+$/, (s) => '␣'.repeat(s.length)) || '∅';
