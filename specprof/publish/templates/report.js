"use strict";
// What a reader chose stands in the page's address: #lang=zh. It is kept here too, and with the entry of the history,
// because a link within the page takes its place in the address.
let state = new URLSearchParams();
const showing = [showLanguage]; // what there is to do when it changes

function change(settings) {
  for (const [name, value] of Object.entries(settings)) {
    if (value) state.set(name, value);
    else state.delete(name);
  }
  history.replaceState(null, "", state.size ? `#${state}` : location.pathname + location.search);
  show();
}

function recall() {
  const within = location.hash && !location.hash.includes("=");
  if (!within) state = new URLSearchParams(location.hash.slice(1));
  else if (history.state === null) history.replaceState(String(state), "");
  else state = new URLSearchParams(history.state);
  show();
}

function show() {
  for (const part of showing) part();
}

// Both languages are on the page: English as it stands there, Chinese in attributes.
const languages = { en: "en", zh: "zh-Hans" };
let shown = "en";

function showLanguage() {
  const asked = state.get("lang");
  const language = Object.hasOwn(languages, asked) ? asked : navigator.language.startsWith("zh") ? "zh" : "en";
  if (language === shown) return;
  shown = language;
  document.documentElement.lang = languages[language];
  for (const element of document.querySelectorAll("[data-zh]")) {
    element.dataset.en ??= element.textContent;
    element.textContent = element.dataset[language];
  }
  for (const field of document.querySelectorAll("[data-placeholder-zh]")) {
    field.dataset.placeholderEn ??= field.placeholder;
    field.placeholder = language === "zh" ? field.dataset.placeholderZh : field.dataset.placeholderEn;
  }
  for (const link of document.querySelectorAll("a[href*='report.html']")) link.hash = `lang=${language}`;
  for (const button of document.querySelectorAll("[data-language]")) {
    button.setAttribute("aria-pressed", button.dataset.language === language);
  }
}

for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => change({ lang: button.dataset.language }));
}

// A line to quote is copied by its button.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const line = button.dataset.line ?? button.parentElement.querySelector("code").textContent;
  const done = () => {
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1500);
  };
  const select = () => {
    const field = document.createElement("textarea");
    field.value = line;
    document.body.append(field);
    field.select();
    if (document.execCommand("copy")) done();
    field.remove();
    button.focus();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(line).then(done, select);
  else select();
});

// On paper nothing can be unfolded, so everything is, but for the long list of lines to copy.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details:not([open]):not(.long)")) {
    fold.open = true;
    fold.dataset.folded = "";
  }
});
addEventListener("afterprint", () => {
  for (const fold of document.querySelectorAll("details[data-folded]")) {
    fold.open = false;
    delete fold.dataset.folded;
  }
});

document.documentElement.classList.add("scripted");
addEventListener("hashchange", recall);
addEventListener("DOMContentLoaded", recall); // when the whole script has run
