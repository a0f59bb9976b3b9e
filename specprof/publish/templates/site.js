// Runs after report.js, which keeps the address: what the tables show and in which order stands in it too, as
// #sort=gain&order=ascending&tag=code&q=words. Words are looked for in both languages.
// A column without an order sorts as its heading suggests: numbers from the largest, words from A. A table that does not
// have the column keeps the order of the studies.
const form = document.getElementById("filters");
const search = document.getElementById("search");
const selects = [...form.querySelectorAll("select")];
const tables = [...document.querySelectorAll("table.listing")].map((table) => ({
  body: table.tBodies[0],
  headings: [...table.tHead.rows[0].cells],
  rows: [...table.tBodies[0].rows], // as the studies order them
}));
const rows = tables.flatMap((table) => table.rows);
const words = new Map(rows.map((row) => {
  const chinese = [...row.querySelectorAll("[data-zh]")].map((element) => element.dataset.zh);
  return [row, [row.textContent, ...chinese].join(" ").replace(/\s+/g, " ").toLowerCase()];
}));

const compareWords = new Intl.Collator("en", { numeric: true }).compare;
const opposite = { ascending: "descending", descending: "ascending" };

function showRows() {
  for (const select of selects) {
    select.value = state.get(select.name) ?? "";
    if (select.selectedIndex < 0) select.value = "";
  }
  const wanted = state.get("q") ?? "";
  if (search.value !== wanted) search.value = wanted;
  const parts = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    const chosen = selects.every((select) => !select.value || row.dataset[select.name] === select.value);
    row.hidden = !(chosen && parts.every((part) => words.get(row).includes(part)));
    if (!row.hidden) count += 1;
  }
  document.getElementById("shown").textContent = count;
  for (const table of tables) order(table, state.get("sort"), state.get("order"));
}

function order({ body, headings, rows }, key, asked) {
  const column = headings.findIndex((heading) => heading.dataset.key && heading.dataset.key === key);
  const direction = column < 0 ? null : asked in opposite ? asked : headings[column].dataset.order;
  for (const [place, heading] of headings.entries()) {
    if (place === column) heading.setAttribute("aria-sort", direction);
    else heading.removeAttribute("aria-sort");
  }
  const sorted = column < 0 ? rows : [...rows].sort((a, b) => compare(a.cells[column], b.cells[column], direction));
  body.append(...sorted);
}

// What is not known comes last, whichever way the rest is sorted.
function compare(a, b, direction) {
  const [empty, other] = [a, b].map((cell) => ["", "—"].includes(cell.textContent.trim()));
  if (empty || other) return empty - other;
  const found = a.dataset.value === undefined
    ? compareWords(a.textContent.trim(), b.textContent.trim())
    : a.dataset.value - b.dataset.value;
  return direction === "descending" ? -found : found;
}

for (const heading of tables.flatMap((table) => table.headings).filter((heading) => heading.dataset.key)) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sort";
  button.append(heading.querySelector(".name"));
  heading.prepend(button);
  button.addEventListener("click", () => {
    const now = heading.getAttribute("aria-sort");
    const next = now ? opposite[now] : heading.dataset.order;
    change({ sort: heading.dataset.key, order: next === heading.dataset.order ? "" : next });
  });
}
form.addEventListener("input", () => {
  change({ q: search.value.trim() ? search.value : "", ...Object.fromEntries(selects.map((s) => [s.name, s.value])) });
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("reset", (event) => {
  event.preventDefault();
  change({ q: "", sort: "", order: "", ...Object.fromEntries(selects.map((select) => [select.name, ""])) });
});
showing.push(showRows);
