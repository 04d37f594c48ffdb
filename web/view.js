// The page's elements, and nothing about calls.
import { STATES, problemWords } from "./words.js";

const $ = (id) => document.getElementById(id);
export const elements = {
  call: $("call"), hear: $("hear"), microphone: $("microphone"), latest: $("latest"),
  captions: $("captions"), readCaptions: $("read-captions"),
};

export function make(tag, className, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function showAgent(config) {
  const name = config.agent?.name;
  if (name) {
    $("agent").textContent = name;
    document.title = `Call ${name}`;
  }
  $("version").textContent = config.version ?? "";
}

// --- the state of the call -------------------------------------------------

export function showState(state, hint) {
  const [word, usual] = STATES[state];
  $("status").dataset.state = state;
  $("state").dataset.state = state;
  $("state").textContent = word;
  $("state-hint").textContent = hint ?? usual;
}

// For a screen reader only: the few changes worth speaking over a call for.
export function announce(text) {
  $("announce").textContent = text;
}

export function showButton(action) {
  elements.call.dataset.action = action;
  document.body.classList.toggle("in-call", action === "hangup");
  $("call-label").textContent = action === "call" ? "Call" : "Hang up";
}

export function showTimer(seconds) {
  $("timer").hidden = seconds === null;
  if (seconds === null) return;
  const whole = Math.floor(seconds);
  $("timer").textContent = `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function showError(problem) {
  const box = $("error");
  box.replaceChildren();
  if (!problem) return;
  const [title, advice] = problemWords(problem);
  box.dataset.kind = problem.kind;
  box.append(make("strong", "", title), make("span", "", advice));
  box.scrollIntoView({ block: "nearest" });
}

// --- the microphone --------------------------------------------------------

export function showMicrophones(list, chosen) {
  const options = [new Option("System default", "")];
  for (const { id, label } of list) options.push(new Option(label, id));
  elements.microphone.replaceChildren(...options);
  elements.microphone.value = list.some(({ id }) => id === chosen) ? chosen : "";
}

export function showMicHint(text = "", warning = false) {
  const hint = $("mic-hint");
  if (hint.textContent !== text) hint.textContent = text;
  hint.classList.toggle("warning", warning);
}

let spokenAt = 0;
export function showLevel(percent) {
  const meter = $("level");
  meter.style.setProperty("--level", String((percent ?? 0) / 100));
  meter.classList.toggle("off", percent === null);
  $("status").style.setProperty("--level", String((percent ?? 0) / 100));
  // Assistive technology gets a few values a second, not sixty.
  const now = performance.now();
  if (percent !== null && now - spokenAt < 250) return;
  spokenAt = now;
  meter.setAttribute("aria-valuenow", String(percent ?? 0));
  meter.setAttribute("aria-valuetext", percent === null ? "off" : percent < 25 ? "quiet" : percent > 95 ? "very loud" : "heard");
}

// --- captions --------------------------------------------------------------

let pinned = true; // following the newest line, until the reader scrolls up
const atBottom = (box) => box.scrollHeight - box.scrollTop - box.clientHeight < 40;

function follow() {
  if (pinned) elements.captions.scrollTop = elements.captions.scrollHeight;
  elements.latest.hidden = pinned;
}

elements.captions.addEventListener("scroll", () => {
  pinned = atBottom(elements.captions);
  elements.latest.hidden = pinned;
}, { passive: true });

elements.latest.addEventListener("click", () => {
  pinned = true;
  follow();
  elements.captions.focus({ preventScroll: true });
});

new ResizeObserver(follow).observe(elements.captions);

export function clearCaptions() {
  elements.captions.replaceChildren();
  pinned = true;
  follow();
  $("captions-empty").hidden = false;
}

export function showCaption({ role, text, final, turn, interrupted }, agentName) {
  if (role !== "user" && role !== "assistant") return;
  const key = `${role}:${turn}`;
  const old = [...elements.captions.children].find((line) => line.dataset.key === key);
  if (old?.dataset.final === "true" && !final) return; // late: the last word is said
  const words = typeof text === "string" ? text.trim() : "";
  if (!words) {
    if (final) old?.remove(); // nothing was said after all
  } else if (old && !final) {
    old.querySelector(".said").textContent = words;
  } else {
    // A final line is a new element, so that a live region reads it once, whole.
    const line = captionLine({ role, words, final, interrupted, turn, agentName });
    line.dataset.key = key;
    if (old) old.replaceWith(line);
    else elements.captions.append(line);
  }
  $("captions-empty").hidden = elements.captions.childElementCount > 0;
  follow();
}

// The call is over: what was still changing stays as it is.
export function settleCaptions() {
  for (const line of elements.captions.children) line.removeAttribute("aria-hidden");
}

function captionLine({ role, words, final, interrupted, turn, agentName }) {
  const line = make("div", "line");
  line.dataset.role = role;
  line.dataset.turn = String(turn);
  line.dataset.final = String(Boolean(final));
  if (!final) line.setAttribute("aria-hidden", "true"); // still changing
  line.append(make("p", "who", role === "user" ? "You" : agentName), make("p", "said", words));
  if (interrupted) {
    line.dataset.interrupted = "true";
    line.append(make("p", "note", role === "assistant" ? "You interrupted here" : "Interrupted"));
  }
  return line;
}
