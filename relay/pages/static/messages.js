// What the pages of messages need beside relay.js: what somebody has opened stays open when the page goes on, and the
// list does not move under a hand.
(() => {
  "use strict";
  const offer = (root) => root.querySelectorAll("button.copies[hidden]").forEach((button) => { button.hidden = !navigator.clipboard; });

  // opened parts of what goes on by itself, by their ids
  let open = new Map();
  document.addEventListener("toggle", (event) => {
    if (event.target.matches?.("[data-live] details[id]")) open.set(event.target.id, event.target.open);
  }, true);
  document.addEventListener("htmx:afterSwap", (event) => {
    event.target.querySelectorAll?.("details[id]").forEach((part) => { if (open.has(part.id)) part.open = open.get(part.id); });
    offer(document);
  });

  // a selection or a hand on the list holds it; what came meanwhile is counted
  const tail = () => document.querySelector("[data-tail]");
  const keys = (root) => new Set([...root.querySelectorAll("[data-key]")].map((row) => row.dataset.key));
  let kept = null;
  const isHeld = (list) => list.matches(":hover") || list.contains(document.activeElement) || list.querySelector("input:checked") !== null;
  const put = (list) => {
    if (kept === null) return;
    list.innerHTML = kept;
    window.htmx.process(list);
    document.dispatchEvent(new CustomEvent("htmx:load", { detail: { elt: list } }));
    kept = null;
    tell(0);
  };
  const tell = (count) => {
    const button = document.querySelector("[data-news]");
    button.hidden = count === 0;
    button.textContent = `${count} new`;
  };
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const list = tail()?.querySelector("[sse-swap]");
    if (!list || !list.contains(event.target) || !isHeld(list)) return;
    event.preventDefault();
    kept = event.detail.data;
    const next = document.createElement("template");
    next.innerHTML = kept;
    const had = keys(list);
    tell([...keys(next.content)].filter((key) => !had.has(key)).length);
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-news]")) put(tail().querySelector("[sse-swap]"));
  });

  // rows to act on
  const count = () => document.querySelectorAll("[data-picked]").forEach((told) => {
    const boxes = document.querySelectorAll("input[name=pick]:checked").length;
    told.textContent = boxes === 0 ? "" : `${boxes} chosen`;
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) document.querySelectorAll("input[name=pick]").forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-all], input[name=pick]")) count();
  });
  document.addEventListener("DOMContentLoaded", () => offer(document));
})();
