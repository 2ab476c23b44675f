// The pages of messages: the drawer, keys, saved filters, local times, and a live list that holds still under a hand.
(() => {
  "use strict";
  const find = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const stored = (name, usual) => { try { return JSON.parse(localStorage.getItem(name)) ?? usual; } catch { return usual; } };
  const store = (name, value) => { try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* a frame may have none */ } };

  // times: written in UTC by the server, shown in local time or UTC
  const two = (number) => String(number).padStart(2, "0");
  const FORMS = {
    second: (at) => `${day(at)} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`,
    minute: (at) => `${day(at).slice(5)} ${two(at.getHours())}:${two(at.getMinutes())}`,
    moment: (at) => FORMS.clock(at).slice(0, 8),
    clock: (at) => `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`,
  };
  const day = (at) => `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const isUtc = () => stored("relay-times", "local") === "utc";
  const shifted = (at) => (isUtc() ? new Date(at.getTime() + at.getTimezoneOffset() * 60000) : at);
  const zone = () => (isUtc() ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone);
  const showTimes = (root) => {
    all("time[data-at]", root).forEach((time) => {
      const at = new Date(time.dateTime);
      if (!Number.isNaN(at.getTime())) time.textContent = FORMS[time.dataset.at](shifted(at));
    });
    all("[data-zone]", root).forEach((part) => { part.textContent = zone(); });
    all("[data-times]", root).forEach((button) => { button.hidden = false; });
  };
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.("[data-times]")) return;
    store("relay-times", isUtc() ? "local" : "utc");
    showTimes(document);
  });
  // a range is entered in the time that is shown, and sent in UTC
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-range]")) return;
    all("input[type=datetime-local]", event.target).forEach((field) => {
      if (!field.value) { field.disabled = true; return; }
      const at = isUtc() ? new Date(`${field.value}Z`) : new Date(field.value);
      field.type = "text";
      field.value = at.toISOString().slice(0, 19) + "Z";
    });
  });

  // menus close when another place is clicked
  document.addEventListener("click", (event) => all("details[data-menu][open]").forEach((menu) => {
    if (!menu.contains(event.target)) menu.open = false;
  }));

  // filters that this browser keeps
  const SAVED = "relay-filters", MOST_SAVED = 20;
  const here = () => {
    const query = new URLSearchParams(location.search);
    ["cursor", "open", "live"].forEach((name) => query.delete(name));
    return query.toString();
  };
  const showSaved = () => {
    const list = find("[data-saved-list]");
    if (!list) return;
    find("[data-saved]").hidden = false;
    list.replaceChildren(...stored(SAVED, []).map(({ name, query }, place) => {
      const item = document.createElement("li"), link = document.createElement("a"), drop = document.createElement("button");
      link.href = `/ui/messages?${new URLSearchParams(query)}`;
      link.textContent = name;
      drop.type = "button";
      drop.className = "quiet";
      drop.textContent = list.dataset.remove;
      drop.setAttribute("aria-label", `${list.dataset.remove} ${name}`);
      drop.dataset.drop = place;
      item.append(link, " ", drop);
      return item;
    }));
  };
  document.addEventListener("submit", (event) => {
    if (!event.target.matches("form[data-save]")) return;
    event.preventDefault();
    const name = event.target.elements.as.value.trim(), kept = stored(SAVED, []).filter((each) => each.name !== name);
    store(SAVED, [{ name, query: here() }, ...kept].slice(0, MOST_SAVED));
    event.target.reset();
    showSaved();
  });
  document.addEventListener("click", (event) => {
    const place = event.target.closest?.("[data-drop]")?.dataset.drop;
    if (place === undefined) return;
    event.stopPropagation();
    store(SAVED, stored(SAVED, []).filter((_, at) => at !== Number(place)));
    showSaved();
  });

  // the drawer: a message beside the list, which stays where it is; its address has `open`
  const drawer = () => find("[data-drawer]");
  const ONE = /^[\w.~%-]+\/[\w.~%-]+$/; // a source and a message: no address may name another part of the relay
  const openOf = (href) => new URL(href, location).pathname.replace("/ui/messages/", "");
  const address = (open) => {
    const query = new URLSearchParams(location.search);
    if (open) query.set("open", open); else query.delete("open");
    return `${location.pathname}${query.size ? `?${query}` : ""}`;
  };
  let opener = null;
  const silence = () => {
    window.htmx.trigger("[data-drawn]", "htmx:abort"); // the next request would wait for the one before
    all("[data-live]", drawer()).forEach((part) => part["htmx-internal-data"]?.sseEventSource?.close());
  };
  const draw = (open) => {
    const url = `/ui/messages/${open}`, part = find("[data-drawn]"), failed = find("[data-not-drawn]");
    silence();
    part.replaceChildren(); // a button of the message before would act on that one
    part.setAttribute("aria-busy", "true");
    failed.hidden = true;
    find("[data-whole]").href = url;
    if (!drawer().open) drawer().show();
    all("li[data-key]").forEach((row) => row.toggleAttribute("data-current", openOf(find("a[data-open]", row).href) === open));
    return window.htmx.ajax("GET", url, { source: part, target: part, swap: "innerHTML" }).catch(() => {}).finally(() => {
      if (find("[data-whole]").getAttribute("href") !== url) return;
      part.removeAttribute("aria-busy");
      failed.hidden = !drawer().open || part.hasChildNodes();
    });
  };
  const open = (link, focus = true) => {
    opener = link;
    history.pushState(null, "", address(openOf(link.href)));
    draw(openOf(link.href)).then(() => { drawer().scrollTop = 0; if (focus) find("[data-drawn]").focus({ preventScroll: true }); });
  };
  const shut = () => {
    silence();
    find("[data-drawn]").replaceChildren();
    drawer().close();
    all("li[data-current]").forEach((row) => row.removeAttribute("data-current"));
    const row = opener && all("a[data-open]").find((link) => link.href === opener.href);
    row?.focus();
  };
  const close = () => { history.pushState(null, "", address(null)); shut(); };
  const follow = () => {
    if (!drawer()) return;
    const open = new URLSearchParams(location.search).get("open");
    if (open && ONE.test(open)) draw(open); else if (drawer().open) shut();
  };
  window.addEventListener("popstate", follow);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey || !drawer()) return;
    const link = event.target.closest?.("a[data-open]");
    if (link) { event.preventDefault(); open(link); }
    if (event.target.closest?.("[data-close]")) close();
  });

  // keys
  const links = () => all(".rows a[data-open]");
  const current = () => document.activeElement?.closest?.(".rows li") ?? find(".rows li[data-current]");
  const move = (step) => {
    const every = links(), at = every.indexOf(current() && find("a[data-open]", current()));
    const next = every[at < 0 ? 0 : Math.min(every.length - 1, Math.max(0, at + step))];
    if (!next) return;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
    if (drawer().open) open(next, false);
  };
  const replay = () => {
    const box = current() && find("input[name=pick]", current());
    if (box) { box.checked = true; count(); }
    if (find("input[name=pick]:checked")) find("#picked").requestSubmit();
  };
  const choose = () => {
    const box = current() && find("input[name=pick]", current());
    if (box) { box.checked = !box.checked; count(); }
  };
  const KEYS = { j: () => move(1), k: () => move(-1), r: replay, x: choose, "?": () => find("[data-keys]").showModal() };
  document.addEventListener("keydown", (event) => {
    if (!drawer() || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.key === "Escape" && drawer().open && !find("dialog:modal")) { event.preventDefault(); close(); return; }
    if (event.target.matches("input:not([type=checkbox]), textarea, select") || find("dialog:modal")) return;
    if (KEYS[event.key]) { event.preventDefault(); KEYS[event.key](); }
  });
  document.addEventListener("click", (event) => { if (event.target.closest?.("[data-help]")) KEYS["?"](); });

  document.addEventListener("htmx:afterSwap", (event) => showTimes(event.target));

  // a selection or a hand on the list holds it; what came meanwhile is counted
  const tail = () => find("[data-tail]");
  const keys = (root) => new Set(all("[data-key]", root).map((row) => row.dataset.key));
  let kept = null;
  const isHeld = (list) => list.matches(":hover") || list.contains(document.activeElement) || find("input:checked", list) !== null;
  const put = (list) => {
    if (kept === null) return;
    list.innerHTML = kept;
    window.htmx.process(list);
    document.dispatchEvent(new CustomEvent("htmx:load", { detail: { elt: list } }));
    showTimes(list);
    kept = null;
    report(0);
  };
  const report = (count) => {
    const button = find("[data-news]");
    button.hidden = count === 0;
    button.textContent = button.dataset.news.replace("{0}", count);
  };
  document.addEventListener("htmx:sseBeforeMessage", (event) => {
    const list = tail() && find("[sse-swap]", tail());
    if (!list || !list.contains(event.target) || !isHeld(list)) return;
    event.preventDefault();
    kept = event.detail.data;
    const next = document.createElement("template");
    next.innerHTML = kept;
    const had = keys(list);
    report([...keys(next.content)].filter((key) => !had.has(key)).length);
  });
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("[data-news]")) put(find("[sse-swap]", tail()));
  });

  // rows to act on
  const count = () => all("[data-picked]").forEach((part) => {
    const boxes = all("input[name=pick]:checked").length;
    part.textContent = boxes === 0 ? "" : part.dataset.picked.replace("{0}", boxes);
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) all("input[name=pick]").forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("[data-all], input[name=pick]")) count();
  });
  document.addEventListener("DOMContentLoaded", () => {
    showTimes(document);
    all("[data-help]").forEach((button) => { button.hidden = false; });
    showSaved();
    follow();
  });
})();
