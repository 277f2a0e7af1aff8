"use strict";
// The row browser. Text of the data only ever becomes a text node.
(() => {
  const rows = JSON.parse(document.getElementById("rows-data").textContent);
  const browser = document.getElementById("browser");
  if (!rows.length) return;
  const byId = (id) => document.getElementById(id);
  const [choice, title, strip, text, token, input, found] =
    ["row-choice", "row-title", "row-strip", "row-text", "token", "search-text", "search-found"].map(byId);
  const TARGET = 1, CONTROL = 2;
  const hint = token.firstElementChild;
  const number = (value) => value.toLocaleString("en-US");
  const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

  const make = (name, className, content) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (content !== undefined) element.append(content);
    return element;
  };

  // Control and format characters (they can reorder or hide text) are written out; line ends and tabs do what they do, behind a sign.
  const unseen = /[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/u;
  const write = (element, content) => {
    let plain = "";
    const flush = () => { if (plain) { element.append(plain); plain = ""; } };
    for (const character of content) {
      if (character === "\n") { flush(); element.append(make("span", "end", "↵")); plain += "\n"; }
      else if (character === "\t") { flush(); element.append(make("span", "end", "⇥")); plain += "\t"; }
      else if (unseen.test(character)) {
        flush();
        element.append(make("span", "esc", `U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`));
      } else plain += character;
    }
    flush();
    return element;
  };

  let spans = [];     // of the row that is shown, in order: {element, unit facts}
  let current = null;

  const describe = (one) => {
    if (current) current.element.classList.remove("current");
    current = one;
    token.replaceChildren();
    if (!one) { token.append(hint); return; }
    one.element.classList.add("current");
    const shown = make("b", "t");
    write(shown, one.text);
    const ids = [].concat(one.ids);
    const kind = [one.kind & TARGET ? "a target" : "only read", one.kind & CONTROL ? "control token" : ""].filter(Boolean).join(", ");
    const facts = [
      `id ${ids.join(" ")}`,
      `position ${number(one.at)} in the example`,
      `slot ${number(one.segment.start + one.at)} of the row`,
      kind,
      `example ${number(one.segment.example)}`,
    ];
    token.append(shown, " ", facts.join(" · "));
    if (one.segment.origin) token.append(" · ", write(make("bdi"), one.segment.origin));
  };

  const drawPart = (part, segment, into) => {
    let at = part.at, unit = 0;
    for (const [count, kind] of part.kinds) {
      for (let left = count; left; left--, unit++) {
        const classes = ["t"];
        if (kind & TARGET) classes.push("target");
        if (kind & CONTROL) classes.push("control");
        const element = write(make("span", classes.join(" ")), part.text[unit]);
        const one = { element, segment, at, ids: part.ids[unit], text: part.text[unit], kind, index: spans.length };
        element.dataset.at = spans.length;
        spans.push(one);
        into.append(element);
        at += [].concat(part.ids[unit]).length;
      }
    }
  };

  const drawSegment = (segment, place) => {
    const article = make("article", "segment");
    article.id = `segment-${place}`;
    const heading = make("h3", "", segment.example === null ? "Padding" : `Example ${number(segment.example)}`);
    article.append(heading);
    const facts = make("p", "facts-line");
    if (segment.example === null) {
      facts.append(`slots ${number(segment.start)} to ${number(segment.start + segment.slots - 1)}: ${plural(segment.slots, "slot")} that nothing is learned from`);
      article.append(facts);
      return article;
    }
    facts.append(write(make("bdi"), segment.origin), segment.origin ? " · " : "",
      `slots ${number(segment.start)} to ${number(segment.start + segment.slots - 1)} · ${plural(segment.tokens, "token")}, ${plural(segment.targets, "target")}`);
    if (segment.slots > segment.tokens) facts.append(` · ${plural(segment.slots - segment.tokens, "slot")} of padding up to the alignment`);
    article.append(facts);
    const body = make("div", "text");
    body.tabIndex = 0;
    body.dir = "auto";
    body.setAttribute("role", "group");
    body.setAttribute("aria-label", `Tokens of example ${segment.example}; the arrow keys move from one to the next`);
    segment.parts.forEach((part, number_) => {
      const last = number_ === segment.parts.length - 1;
      if (number_ > 0) body.append(make("span", "left-out", `… ${plural(segment.left_out, "token")} left out …`));
      drawPart(part, segment, body);
      if (last && number_ === 0 && segment.left_out) body.append(make("span", "left-out", `… ${plural(segment.left_out, "token")} left out`));
    });
    if (!segment.parts.length && segment.left_out) body.append(make("span", "left-out", `${plural(segment.left_out, "token")} left out`));
    article.append(body);
    return article;
  };

  const drawStrip = (row) => {
    strip.replaceChildren();
    row.segments.forEach((segment, place) => {
      const link = make("a", segment.example === null ? "pad" : `tint-${place % 5}`);
      link.href = `#segment-${place}`;
      link.style.flexGrow = segment.slots;
      const name = segment.example === null ? `padding, ${plural(segment.slots, "slot")}` : `example ${number(segment.example)}, ${plural(segment.slots, "slot")}`;
      link.title = name;
      link.append(make("span", "hidden", name));
      strip.append(link);
    });
    const last = row.segments[row.segments.length - 1];
    const rest = row.capacity - last.start - last.slots;
    if (rest) {
      const more = make("span", "more");
      more.style.flexGrow = rest;
      more.title = `${plural(row.more, "segment")} more`;
      strip.append(more);
    }
  };

  const show = (place) => {
    const row = rows[place];
    choice.value = String(place);
    spans = [];
    current = null;
    describe(null);
    title.replaceChildren(
      make("b", "", `${row.split} row ${number(row.row)}`),
      ` ${row.why.join(", ")} · ${row.shard} · ${number(row.tokens)} of ${number(row.capacity)} slots filled, ` +
      `${plural(row.segments.filter((one) => one.example !== null).length, "example")}, ${plural(row.targets, "target")}`);
    drawStrip(row);
    text.replaceChildren(...row.segments.map(drawSegment));
    if (row.more) text.append(make("p", "empty", `${plural(row.more, "segment")} more in this row: see packer inspect --row ${row.row}`));
    highlight();
  };

  // Search: over all rows shown, without regard to case. A match may span tokens, not what was left out.
  let query = "", matches = [], match = -1;
  const fold = (content) => Array.from(content, (one) => { const low = one.toLowerCase(); return low.length === one.length ? low : one; }).join("");
  const search = (wanted) => {
    query = fold(wanted);
    matches = [];
    match = -1;
    if (!query) return;
    rows.forEach((row, place) => row.segments.forEach((segment, segmentPlace) => segment.parts.forEach((part, partPlace) => {
      const whole = fold(part.text.join(""));
      for (let from = whole.indexOf(query); from >= 0 && matches.length < 1000; from = whole.indexOf(query, from + query.length)) {
        matches.push({ place, segmentPlace, partPlace, from, to: from + query.length });
      }
    })));
  };
  const unitsOf = (hit) => {
    const part = rows[hit.place].segments[hit.segmentPlace].parts[hit.partPlace];
    const units = [];
    let start = 0;
    part.text.forEach((content, unit) => {
      const end = start + content.length;
      if (start < hit.to && end > hit.from) units.push(unit);
      start = end;
    });
    return units;
  };
  const firstSpan = (hit) => {
    let first = 0;
    const row = rows[hit.place];
    for (let segment = 0; segment <= hit.segmentPlace; segment++) {
      const parts = row.segments[segment].parts;
      for (let part = 0; part < (segment === hit.segmentPlace ? hit.partPlace : parts.length); part++) first += parts[part].text.length;
    }
    return first;
  };
  const highlight = () => {
    spans.forEach((one) => one.element.classList.remove("hit", "hit-now"));
    matches.forEach((hit, index) => {
      if (hit.place !== Number(choice.value)) return;
      const first = firstSpan(hit);
      for (const unit of unitsOf(hit)) spans[first + unit].element.classList.add("hit", ...(index === match ? ["hit-now"] : []));
    });
  };
  const report = () => {
    if (!query) found.textContent = "";
    else if (!matches.length) found.textContent = "no match";
    else found.textContent = match < 0 ? plural(matches.length, "match").replace("matchs", "matches") : `match ${match + 1} of ${matches.length}`;
  };
  const next = () => {
    if (!matches.length) return;
    match = (match + 1) % matches.length;
    const hit = matches[match];
    if (hit.place !== Number(choice.value)) show(hit.place);
    else highlight();
    const one = spans[firstSpan(hit) + unitsOf(hit)[0]];
    describe(one);
    one.element.scrollIntoView({ block: "center" });
  };

  input.addEventListener("input", () => { search(input.value); highlight(); report(); });
  byId("search").addEventListener("submit", (event) => { event.preventDefault(); next(); report(); });
  choice.addEventListener("change", () => show(Number(choice.value)));
  const move = (by) => show((Number(choice.value) + by + rows.length) % rows.length);
  byId("row-before").addEventListener("click", () => move(-1));
  byId("row-after").addEventListener("click", () => move(1));

  const spanOf = (event) => {
    const element = event.target.closest("[data-at]");
    return element && spans[Number(element.dataset.at)];
  };
  text.addEventListener("pointerover", (event) => { const one = spanOf(event); if (one) describe(one); });
  text.addEventListener("click", (event) => { const one = spanOf(event); if (one) describe(one); });
  text.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const body = event.target.closest(".text");
    if (!by || !body) return;
    event.preventDefault();
    const inside = spans.filter((one) => body.contains(one.element));
    if (!inside.length) return;
    const here = inside.indexOf(current);
    const to = here < 0 ? (by > 0 ? 0 : inside.length - 1) : Math.min(Math.max(here + by, 0), inside.length - 1);
    describe(inside[to]);
    inside[to].element.scrollIntoView({ block: "nearest" });
  });

  document.querySelectorAll(".no-script").forEach((one) => { one.hidden = true; });
  browser.hidden = false;
  show(0);
})();
