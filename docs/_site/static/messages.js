// Troubleshooting: a field that keeps the rows whose message agrees with what is pasted into it.
"use strict";

/** The share of a message's fixed words that a text has. */
function agreement(message, text) {
  const words = message.toLowerCase().match(/[\p{L}\p{N}_.[\]]{2,}/gu) ?? [];
  const present = new Set(text.toLowerCase().match(/[\p{L}\p{N}_.[\]]{2,}/gu) ?? []);
  return words.length ? words.filter((word) => present.has(word)).length / words.length : 0;
}

/** Whether a row belongs to a text: a part of the row was typed, or its message was pasted. */
function belongs(row, text) {
  if (row.textContent.toLowerCase().includes(text.toLowerCase())) return true;
  return agreement(row.querySelector("code").textContent, text) > 0.75;
}

document.addEventListener("DOMContentLoaded", () => {
  const page = document.querySelector("section#troubleshooting");
  if (!page) return;
  const rows = [...page.querySelectorAll("tbody tr")].filter((row) => row.querySelector("code"));
  const field = Object.assign(document.createElement("input"), {
    type: "search",
    className: "messages",
    placeholder: "Paste a message, or type a part of it",
  });
  field.setAttribute("aria-label", field.placeholder);
  const none = Object.assign(document.createElement("p"), {
    hidden: true,
    textContent: "No message here is like that. Delete a part of it, such as a file's name.",
  });
  none.setAttribute("role", "status");
  field.addEventListener("input", () => {
    const text = field.value.trim();
    for (const row of rows) row.hidden = text !== "" && !belongs(row, text);
    for (const section of page.querySelectorAll(":scope > section"))
      section.hidden = ![...section.querySelectorAll("tbody tr")].some((row) => !row.hidden);
    none.hidden = rows.some((row) => !row.hidden);
  });
  page.querySelector("p").after(field, none);
});
