// @ts-check
// Short words for the document: find, make, and walk with the keyboard.

/** @param {string} id @returns {HTMLElement} */
export function element(id) {
  return /** @type {HTMLElement} */ (document.getElementById(id));
}
/** @param {string} id */
export const select = (id) => /** @type {HTMLSelectElement} */ (element(id));

/** @param {string} tag @param {string} className @param {string} [text] */
export function make(tag, className, text = '') {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

/** Moves an index as arrow keys, Home and End say. @param {string} key @param {number} at @param {number} count */
export function walked(key, at, count) {
  const moved = { ArrowLeft: at - 1, ArrowUp: at - 1, ArrowRight: at + 1, ArrowDown: at + 1, Home: 0, End: count - 1 }[key];
  return moved === undefined ? undefined : Math.min(Math.max(moved, 0), count - 1);
}

/** One stop of the Tab key for a group; arrows walk inside it. @param {string} id @param {(index: number) => void} [then] */
export function roam(id, then) {
  element(id).addEventListener('keydown', (event) => {
    const group = /** @type {HTMLElement[]} */ ([...element(id).children]);
    const at = group.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const backwards = getComputedStyle(element(id)).direction === 'rtl';
    const key = backwards ? { ArrowLeft: 'ArrowRight', ArrowRight: 'ArrowLeft' }[event.key] ?? event.key : event.key;
    const next = walked(key, at, group.length);
    if (next === undefined || at < 0) return;
    event.preventDefault();
    group.forEach((member, index) => { member.tabIndex = index === next ? 0 : -1; });
    group[next].focus();
    then?.(next);
  });
}
