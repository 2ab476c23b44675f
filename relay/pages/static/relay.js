// What the pages need beside htmx: times that go on, buttons that copy, questions before what cannot be undone, live parts.
// Everything is found by its data- attributes, also in parts that come later. Without it, pages can still be read.
(() => {
  "use strict";
  const each = (root, selector, work) => {
    if (root.matches?.(selector)) work(root);
    root.querySelectorAll?.(selector).forEach(work);
  };
  const say = (text) => { document.querySelector("[data-said]").textContent = text; };

  // times: what the server wrote holds for the moment at which it came; the browser's own clock may be wrong
  const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const SIGNS = { d: 86400, h: 3600, min: 60, s: 1 };
  const timed = new WeakMap();
  const { ago, coming, now } = document.documentElement.dataset; // in the words of the page
  const since = (text) => {
    const found = /(\d+(?:\.\d+)?) (d|h|min|s)/.exec(text);
    if (!found) return text === now ? 0 : null;
    const sign = text === coming.replace("{0}", found[0]) ? -1 : text === ago.replace("{0}", found[0]) ? 1 : null;
    return sign && sign * found[1] * SIGNS[found[2]];
  };
  const told = (seconds) => {
    const size = Math.abs(seconds);
    const [unit, name] = UNITS.find(([unit]) => size >= unit) ?? [1, "s"];
    return size < 1 ? now : (seconds < 0 ? coming : ago).replace("{0}", `${Math.floor(size / unit)} ${name}`);
  };
  const tick = () => document.querySelectorAll("time[data-ago]").forEach((time) => {
    if (!timed.has(time)) timed.set(time, { at: performance.now(), from: since(time.textContent) });
    const { at, from } = timed.get(time);
    if (from === null || Math.abs(from) >= 7200) return;
    const seconds = from + (performance.now() - at) / 1000;
    time.textContent = time.dataset.ago && seconds >= 0 ? time.dataset.ago : told(seconds);
  });
  setInterval(tick, 1000);

  // copying
  const offerCopies = (root) => each(root, "[data-copy][hidden]", (button) => { button.hidden = !navigator.clipboard; });
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("[data-copy]");
    if (!button) return;
    await navigator.clipboard.writeText(button.dataset.copy);
    button.classList.add("done");
    say(document.querySelector("[data-said]").dataset.copied);
    setTimeout(() => button.classList.remove("done"), 1200);
  });

  // questions: without a script, the server asks on a page of its own
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.matches("form[data-confirm]") || form.elements.confirmed) return;
    if (!form.dataset.confirm.split(" ").some((name) => !name || form.elements[name].value.trim())) return; // it lacks all of these
    event.preventDefault();
    const dialog = document.querySelector("[data-ask]");
    dialog.querySelector("p").textContent = form.elements.confirm.value;
    dialog.querySelector("[value=yes]").textContent = form.elements.label.value;
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      const yes = document.createElement("input");
      Object.assign(yes, { type: "hidden", name: "confirmed", value: "1" });
      form.append(yes);
      if (!form.isConnected) {  // a live part was made anew while the question stood
        form.hidden = true;
        document.body.append(form);
      }
      form.requestSubmit();
    }, { once: true });
    dialog.showModal();
  });

  // filters that take effect as they are chosen, and a form that nobody sends twice
  document.addEventListener("change", (event) => {
    if (event.target.matches("form[data-auto] select, form[data-auto] input[type=checkbox]")) event.target.form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    if (event.defaultPrevented || event.target.method !== "post") return;
    setTimeout(() => event.target.querySelectorAll("button").forEach((button) => { button.disabled = true; }));
  });
  window.addEventListener("pageshow", () => document.querySelectorAll("form button:disabled").forEach((button) => { button.disabled = false; }));

  document.addEventListener("keydown", (event) => {
    const menu = event.key === "Escape" && event.target.closest?.("details.menu[open]");
    if (!menu) return;
    event.preventDefault();
    menu.open = false;
    menu.querySelector("summary").focus();
  });

  // the search box: from everywhere
  document.addEventListener("keydown", (event) => {
    const field = document.querySelector("[data-find]"), typing = event.target.matches?.("input:not([type=checkbox]), textarea, select");
    const wanted = (event.key === "k" && (event.ctrlKey || event.metaKey)) || (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey);
    if (!field || !wanted || document.querySelector("dialog:modal")) return;
    event.preventDefault();
    field.focus();
    field.select();
  });

  // what a live part changes keeps its focus and its place: only what differs is touched. A form has an id made of what
  // it does, so that a button never becomes another one under the pointer
  const toggled = new WeakSet();
  document.addEventListener("click", (event) => {
    const summary = event.target.closest?.("summary");
    if (summary) toggled.add(summary.parentElement);
  });
  Object.assign(window.Idiomorph?.defaults.callbacks ?? {}, {
    beforeNodeMorphed: (was, fresh) => {
      if (was.dataset?.drawn) {
        if (was.dataset.chart === fresh.dataset?.chart) return false;
        delete was.dataset.drawn;
        was.replaceChildren();
      }
      timed.delete(was);
      return true;
    },
    beforeAttributeUpdated: (name, part) => !(name === "open" && toggled.has(part)) && !(name === "hidden" && part.matches("[data-copy]")),
  });

  // only pages are put into pages: what others have sent is never of their type
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (!/^text\/html(;|$)/.test(event.detail.xhr.getResponseHeader("content-type") ?? "")) event.detail.shouldSwap = false;
  });

  // a part that does not come leaves the link that is there without a script
  document.addEventListener("htmx:afterRequest", ({ detail: { elt, successful } }) => {
    if (!successful && elt.matches(".loading")) elt.innerHTML = elt.querySelector("noscript").textContent;
  });

  // live parts: a browser has six connections to a host, and those of tabs that nobody sees would use them up
  const source = (part) => part["htmx-internal-data"]?.sseEventSource;
  const connect = (part) => {
    const fresh = part.cloneNode(true);
    delete fresh.dataset.asleep;
    fresh.querySelectorAll("[data-drawn]").forEach((figure) => { delete figure.dataset.drawn; figure.replaceChildren(); });
    source(part)?.close();
    part.replaceWith(fresh);
    htmx.process(fresh);
    htmx.trigger(fresh, "htmx:load");
  };
  document.addEventListener("visibilitychange", () => document.querySelectorAll("[data-live]").forEach((part) => {
    if (document.hidden) {
      source(part)?.close();
      part.dataset.asleep = "1";
    } else if (part.dataset.asleep) {
      connect(part);
    }
  }));

  // the connection: a page that does not hear from the relay, or whose session has ended, or of another build, says so
  const PULSE_MS = 1500, page = document.documentElement;
  const watch = (state) => {
    const was = page.dataset.connection ?? "ok", bar = document.querySelector("[data-watch]");
    if (was === state || !bar) return;
    if (state === "ok") delete page.dataset.connection; else page.dataset.connection = state;
    bar.hidden = state === "ok";
    bar.querySelectorAll("[data-when]").forEach((line) => { line.hidden = line.dataset.when !== state; });
    const logIn = bar.querySelector("[data-log-in]");
    if (logIn) logIn.href = `/ui/login?to=${encodeURIComponent(location.pathname + location.search)}`;
    document.querySelectorAll("[data-following]").forEach((sign) => { sign.hidden = state !== "ok"; });
    if (was === "lost" || was === "ended") document.querySelectorAll("[data-live]").forEach((part) => { if (source(part)?.readyState !== 1) connect(part); });
  };
  const pulse = async () => {
    try {
      const answer = await fetch("/ui/pulse", { signal: AbortSignal.timeout(PULSE_MS), cache: "no-store" });
      const { state, build } = await answer.json();
      watch(state === "away" ? "lost" : state === "ok" && build !== page.dataset.build ? "old" : state);
    } catch {
      if (!leaving) watch("lost");
    }
  };
  let leaving = false, beats = null, turn = 0;
  const beat = async () => {
    const own = ++turn;
    if (!document.hidden) await pulse();
    if (own === turn) beats = setTimeout(beat, page.dataset.connection === "ended" ? 20 * PULSE_MS : PULSE_MS);
  };
  ["pagehide", "pageshow"].forEach((name) => window.addEventListener(name, () => { leaving = name === "pagehide"; }));
  document.addEventListener("visibilitychange", () => {
    if (document.hidden || beats === null || !document.querySelector("[data-watch]")) return;
    clearTimeout(beats);
    beat();
  });

  // in a frame of another page: its height, for the configured origins alone
  const targets = (page.dataset.resizeTo ?? "").split(" ").filter(Boolean), above = location.ancestorOrigins?.[0];
  if (targets.length && window.parent !== window) new ResizeObserver(() => {
    const message = { type: "relay:resize", height: document.body.scrollHeight };
    targets.filter((origin) => !above || origin === above).forEach((origin) => window.parent.postMessage(message, origin));
  }).observe(document.documentElement);

  const settle = (root) => { offerCopies(root); tick(); };
  document.addEventListener("DOMContentLoaded", () => {
    settle(document.body);
    if (document.activeElement === document.body) document.querySelector("[aria-invalid], main:not(:has([aria-invalid])) .note[role=alert], [data-note]")?.focus(); // what came of a form
    const entry = document.querySelector(".bar nav [aria-current]"), nav = entry?.closest("nav");
    if (nav) nav.scrollLeft = entry.offsetLeft - nav.offsetLeft - (nav.clientWidth - entry.offsetWidth) / 2; // in a narrow window
    if (document.querySelector("[data-watch]")) beats = setTimeout(beat, PULSE_MS);
  });
  document.addEventListener("htmx:load", (event) => settle(event.target));
})();
