// @ts-check
// The colours of weights: straight lines in OKLab between stops (lightness, chroma, hue), so that equal steps look equal.

import { largestOf } from './weights.js';

const darkStops = [[0.2, 0.03, 290], [0.36, 0.13, 295], [0.56, 0.2, 350], [0.76, 0.15, 45], [0.95, 0.07, 95]];
const lightStops = [[0.97, 0.008, 80], [0.88, 0.07, 65], [0.71, 0.16, 30], [0.47, 0.18, 340], [0.25, 0.11, 290]];

/** @param {number[][]} stops @returns {Uint8ClampedArray} 256 opaque colours */
function ramp(stops) {
  const lab = stops.map(([l, c, h]) => [l, c * Math.cos((h * Math.PI) / 180), c * Math.sin((h * Math.PI) / 180)]);
  const colours = new Uint8ClampedArray(256 * 4);
  for (let step = 0; step < 256; step++) {
    const place = (step / 255) * (stops.length - 1);
    const first = Math.min(Math.floor(place), stops.length - 2);
    const [l, a, b] = lab[first].map((value, axis) => value + (place - first) * (lab[first + 1][axis] - value));
    const long = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const medium = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const short = (l - 0.0894841775 * a - 1.291485548 * b) ** 3;
    const linear = [
      4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
      -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
      -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
    ];
    linear.forEach((value, channel) => {
      const bounded = Math.min(Math.max(value, 0), 1);
      const encoded = bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
      colours[4 * step + channel] = 255 * encoded;
    });
    colours[4 * step + 3] = 255;
  }
  return colours;
}
const ramps = { dark: ramp(darkStops), light: ramp(lightStops) };

const darkScheme = matchMedia('(prefers-color-scheme: dark)');
let printing = false;
const isDark = () => darkScheme.matches && !printing;
export const colours = () => (isDark() ? ramps.dark : ramps.light);

/** Black or white, whichever can be read on that step of the ramp. @param {number} step */
export const inkOn = (step) => (isDark() === step > 150 ? '#1a1626' : '#f6f1ff');

/** @param {() => void} repaint  called when the page turns dark or light, also for paper */
export function onSchemeChange(repaint) {
  darkScheme.addEventListener('change', repaint);
  for (const [event, now] of /** @type {const} */ ([['beforeprint', true], ['afterprint', false]])) {
    addEventListener(event, () => { printing = now; repaint(); });
  }
}

/** Paints one pixel a cell; CSS enlarges it, so 200 × 200 costs 40,000 pixels on any screen.
 *  @param {HTMLCanvasElement} canvas @param {Float32Array} weights @param {number} width @param {number} height */
export function paint(canvas, weights, width, height) {
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const top = largestOf(weights) || 1;
  const table = colours();
  for (let i = 0; i < weights.length; i++) {
    const step = 4 * Math.round((255 * weights[i]) / top);
    image.data.set(table.subarray(step, step + 4), 4 * i);
  }
  canvas.getContext('2d')?.putImageData(image, 0, 0);
}
