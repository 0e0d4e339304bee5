"use strict";
// Sliders over tables that say the same without them: one over rows, or two over rows and columns.
document.querySelectorAll("table[data-sliders]").forEach(function (table, number) {
  var rows = Array.from(table.tBodies[0].rows), cells = table.dataset.sliders === "cells";
  var heads = Array.from(table.tHead.rows[0].cells).slice(1);
  var box = document.createElement("div"), said = document.createElement("output");
  box.className = "slider";
  function slider(name, count, at) {
    var label = document.createElement("label"), input = document.createElement("input");
    input.type = "range"; input.min = 0; input.max = count - 1; input.value = at; input.id = "slider" + number + name;
    label.htmlFor = input.id; label.textContent = name;
    input.addEventListener("input", show);
    box.append(label, input);
    return input;
  }
  var first = table.tHead.rows[0].cells[0].textContent.trim();
  var down = slider(first, rows.length, Math.floor(rows.length / 2));
  var across = cells ? slider(table.dataset.across || "ε", heads.length, Math.floor(heads.length / 2)) : null;
  function show() {
    var row = rows[down.value], name = row.cells[0].textContent;
    table.querySelectorAll(".chosen").forEach(function (each) { each.classList.remove("chosen"); });
    down.setAttribute("aria-valuetext", name);
    if (!cells) { row.classList.add("chosen"); said.textContent = row.dataset.says; return; }
    var cell = row.cells[Number(across.value) + 1], head = heads[across.value].textContent;
    across.setAttribute("aria-valuetext", head);
    cell.classList.add("chosen");
    said.textContent = name + " " + first + ", " + head + ": " + cell.textContent;
  }
  box.append(said);
  table.parentNode.before(box);
  show();
});
