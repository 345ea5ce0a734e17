"use strict";
for (const box of document.querySelectorAll(".records")) {
  // A record is a row or, in a table of class `each`, a body whose first row has the figures.
  const each = box.classList.contains("each");
  const noun = each ? "requests" : "rows";
  const body = box.querySelector(each ? "table" : "tbody");
  const records = each ? [...body.tBodies] : [...body.rows];
  const rows = records.map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const cells = (row) => (each ? row.rows[0].cells : row.cells);
  const search = box.querySelector("input");
  const choices = [...box.querySelectorAll("select")];
  const count = box.querySelector("output");

  function filter() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const { row, text } of rows) {
      const fits =
        words.every((word) => text.includes(word)) &&
        choices.every((choice) => !choice.value || cells(row)[choice.dataset.column].textContent === choice.value);
      row.hidden = !fits;
      shown += fits;
    }
    const all = rows.length.toLocaleString("en");
    count.textContent = shown === rows.length ? `${all} ${noun}` : `${shown.toLocaleString("en")} of ${all} ${noun}`;
  }

  function value(row, column) {
    const cell = cells(row)[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  }

  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === ""); // nothing comes last
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  }

  const heads = [...box.querySelectorAll("thead th")];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const sorted = rows.map(({ row }) => row).sort((a, b) => compare(value(a, column), value(b, column)));
      body.append(...(down ? sorted.reverse() : sorted));
    });
  });
  search.addEventListener("input", filter);
  for (const choice of choices) choice.addEventListener("change", filter);
  filter(); // a browser may restore earlier input
}
