// Search: all words of the question, in any order; headings count more than text. Works from a file, asks nobody.
"use strict";

const MOST = 12;
const box = document.getElementById("search");
const found = document.getElementById("found");
const root = document.body.dataset.root;
let loading = null;

function loadIndex() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${root}assets/search-index.js`;
    script.onload = resolve;
    script.onerror = reject;
    document.head.append(script);
  });
  return loading;
}

function score(words, [, page, title, text]) {
  const heading = title.toLowerCase();
  const above = page.toLowerCase();
  const below = text.toLowerCase();
  // `max tokens` is looked for as max_tokens and --max-tokens too
  const phrase = new RegExp(words.map((word) => word.replace(/[^\w]/g, "\\$&")).join("[ _-]"));
  let sum = words.length > 1 && phrase.test(below) ? 4 : 0;
  for (const word of words) {
    const points = (heading === word ? 16 : heading.includes(word) ? 8 : 0) + (above.includes(word) ? 3 : 0) + (below.includes(word) ? 1 : 0);
    if (points === 0) return 0;
    sum += points;
  }
  return sum;
}

function entry([target, page, title, text], word) {
  const link = document.createElement("a");
  link.href = root + target;
  link.append(title === page ? title : `${page}: ${title}`);
  const excerpt = document.createElement("small");
  const at = Math.max(0, text.toLowerCase().indexOf(word) - 30);
  excerpt.append(text.slice(at, at + 120));
  link.append(excerpt);
  const item = document.createElement("li");
  item.append(link);
  return item;
}

async function search() {
  await loadIndex();
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  const ranked = words.length ? SEARCH_INDEX.map((section) => [score(words, section), section]).filter(([points]) => points > 0) : [];
  ranked.sort((one, other) => other[0] - one[0]);
  found.replaceChildren(...ranked.slice(0, MOST).map(([, section]) => entry(section, words[0])));
  if (words.length && !ranked.length) {
    const none = document.createElement("li");
    none.className = "none";
    none.append("Nothing has all of these words.");
    found.append(none);
  }
  found.hidden = !words.length;
}

box.hidden = false;
box.addEventListener("focus", loadIndex);
box.addEventListener("input", search);
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && !typing) {
    event.preventDefault();
    box.focus();
  } else if (event.key === "Escape") {
    found.hidden = true;
  } else if (event.key === "Enter" && document.activeElement === box) {
    found.querySelector("a")?.click();
  }
});
document.addEventListener("click", (event) => {
  if (!found.contains(event.target) && event.target !== box) found.hidden = true;
});
found.addEventListener("click", () => { found.hidden = true; });
