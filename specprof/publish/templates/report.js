"use strict";
// A line to quote is copied by its button. Everything else on the page works without this script.
document.addEventListener("click", (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const line = button.parentElement.querySelector("code");
  const done = () => {
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };
  const select = () => {
    const range = document.createRange();
    range.selectNodeContents(line);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    if (document.execCommand("copy")) done();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(line.textContent).then(done, select);
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
