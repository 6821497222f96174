// What a reader of the page that is open would call a fault, as sentences.
async () => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));  // the page hears of its size
  const faults = new Set(), root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) faults.add(`scrolls by ${root.scrollWidth - root.clientWidth}`);
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const numbers = colour => {  // red, green, blue, opacity
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const light = colour => {
    const [r, g, b] = numbers(colour).map(v => (v /= 255) <= 0.04 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
  };
  const behind = element => {  // the colour that an element is drawn on
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (numbers(colour)[3] > 127) return colour;
    }
    return getComputedStyle(root).colorScheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)";
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text; (text = texts.nextNode());) {
    const element = text.parentElement, style = getComputedStyle(element), said = text.data.trim().slice(0, 40);
    if (!said || element.closest("script, style, noscript, title, option") || !element.checkVisibility()) continue;
    const svg = element.closest("svg"), ink = light(svg ? style.fill : style.color), paper = light(behind(element));
    const box = svg && element.parentElement.querySelector(":scope > rect");
    if (!box && Math.max(ink, paper) / Math.min(ink, paper) < (svg ? 3 : 4.5)) faults.add(`pale: ${said}`);
    if (svg) {
      const [own, frame] = [element, box ?? svg].map(each => each.getBoundingClientRect());
      if (own.left < frame.left - 2 || own.right > frame.right + 2) faults.add(`cut: ${said}`);
    }
    for (const word of svg ? [] : text.data.matchAll(/(?<!\S)[^\s\p{Script=Han}-]{2,24}(?!\S)/gu)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].filter(r => r.width).map(r => Math.round(r.top)));
      if (lines.size > 1) faults.add(`broken: ${word[0]}`);
    }
  }
  return [...faults];
}
