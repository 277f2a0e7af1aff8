"""What a page owes to those who do not see it as others do, looked at in the browser: names, labels, order of headings, contrast."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Each returns what is wrong, as text.
FAULTS = r"""
() => {
  const faults = [];
  const seen = (element) => element.checkVisibility({ opacityProperty: false, visibilityProperty: true });
  const name = (element) => (element.getAttribute("aria-label")
    || (element.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent || "").join(" ")
    || [...(element.labels || [])].map((label) => label.textContent).join(" ")
    || element.textContent || "").trim();

  if (document.documentElement.lang !== "en") faults.push("no language");
  if (!document.title) faults.push("no title");
  if (document.querySelectorAll("h1").length !== 1) faults.push("not one h1");
  if (document.querySelectorAll("main").length !== 1) faults.push("not one main");

  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  for (const id of new Set(ids)) if (ids.filter((one) => one === id).length > 1) faults.push(`id ${id} twice`);
  for (const element of document.querySelectorAll("[aria-labelledby], label[for], output[for], a[href^='#']")) {
    const wanted = element.getAttribute("aria-labelledby") || element.getAttribute("for") || element.getAttribute("href").slice(1);
    for (const id of wanted.split(" ")) if (!ids.includes(id)) faults.push(`nothing has the id ${id}`);
  }
  for (const element of document.querySelectorAll("a, button, input, select, section, nav, summary, [role=region], [role=group], [role=img]")) {
    if (!name(element)) faults.push(`no name: ${element.outerHTML.slice(0, 80)}`);
  }
  for (const svg of document.querySelectorAll("svg")) {
    if (svg.parentElement.closest("svg")) continue;
    if (svg.getAttribute("aria-hidden") !== "true" && svg.getAttribute("role") !== "img") faults.push("an svg that is neither a picture nor hidden");
  }
  for (const figure of document.querySelectorAll("figure")) {
    if (figure.querySelector("svg") && figure.id !== "buffers" && !figure.querySelector("details table") && !(figure.closest(".views") ?? figure).parentElement.querySelector("table")) {
      faults.push(`no table behind a chart: ${figure.textContent.slice(0, 60)}`);
    }
  }
  for (const table of document.querySelectorAll("table")) {
    if (!table.caption?.textContent.trim()) faults.push("a table without a caption");
    for (const th of table.querySelectorAll("th")) if (!th.scope) faults.push(`th without scope: ${th.textContent}`);
  }
  let level = 0;
  for (const heading of document.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) faults.push(`h${now} after h${level}`);
    level = now;
  }

  // WCAG 2: relative luminance; 4.5 for text, 3 for large text.
  const rgb = (text) => { const found = text.match(/[\d.]+/g).map(Number); return { c: found.slice(0, 3), a: found.length > 3 ? found[3] : 1 }; };
  const luminance = (c) => { const [r, g, b] = c.map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const found = rgb(getComputedStyle(one).backgroundColor);
      if (found.a === 1) return found.c;
    }
    return [255, 255, 255];
  };
  const checked = new Set();
  for (const element of document.querySelectorAll("body *")) {
    if (["SCRIPT", "STYLE", "TITLE", "title", "OPTION"].includes(element.tagName) || !seen(element) || element.closest(".hidden")) continue;
    if (![...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim())) continue;
    const style = getComputedStyle(element);
    const inside = element.namespaceURI.endsWith("svg");
    let ink = rgb(inside ? style.fill : style.color).c;
    const behind = ground(element);
    let opacity = 1;
    for (let one = element; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity);
    ink = ink.map((v, i) => v * opacity + behind[i] * (1 - opacity));
    const [high, low] = [luminance(ink), luminance(behind)].sort((a, b) => b - a);
    const ratio = (high + 0.05) / (low + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const key = `${element.className.baseVal ?? element.className}|${element.tagName}|${ratio.toFixed(1)}`;
    if (ratio < (large ? 3 : 4.5) && !checked.has(key)) {
      checked.add(key);
      faults.push(`contrast ${ratio.toFixed(2)} of ${element.tagName}.${element.className.baseVal ?? element.className}: ${element.textContent.trim().slice(0, 30)}`);
    }
  }
  return faults;
}
"""


def faults(page: Page) -> list[str]:
    """What is wrong with the page as it is shown now."""
    return list(page.evaluate(FAULTS))


def wider_than_the_screen(page: Page) -> int:
    """CSS pixels that have to be scrolled to the side."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
