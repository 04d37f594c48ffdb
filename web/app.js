// Ties the page together: one `current` call at most; handlers made for a call
// ignore everything once it is no longer the current one.
import { Call } from "./call.js";
import { LevelMeter, SilenceWatch, checkSupport, listMicrophones, remember, remembered } from "./microphone.js";
import * as view from "./view.js";
import { clearTurns, setObjective, showTurn } from "./latency.js";
import { CallProblem, HINTS, STATES, endedWords, problemWords } from "./words.js";

const { call: callButton, hear, microphone, readCaptions, captions } = view.elements;
let config = null;
let current = null;
let retryTimer = 0;

async function loadConfig() {
  let response;
  try {
    response = await fetch("/api/config", { headers: { Accept: "application/json" }, signal: AbortSignal.timeout(10_000) });
  } catch {
    throw new CallProblem("unreachable");
  }
  const body = response.ok ? await response.json().catch(() => null) : null;
  if (!body || typeof body !== "object") throw new CallProblem("server");
  config = body;
  view.showAgent(config);
  setObjective(config.mouth_to_ear_objective_ms);
  return config;
}

// --- one call ---------------------------------------------------------------

function startCall() {
  clearTimeout(retryTimer);
  view.showError(null);
  view.announce("");
  try {
    checkSupport();
  } catch (problem) {
    view.showError(problem);
    return;
  }
  view.clearCaptions();
  clearTurns();
  view.showTimer(null);
  view.showMicHint();
  view.showButton("hangup");
  view.showState("connecting", HINTS.allow);
  view.announce("Connecting");
  microphone.disabled = true;

  // What this call holds besides the connection, all let go in `ended`.
  const audioContext = new AudioContext();
  audioContext.resume().catch(() => {});
  let meter, clock, wakeLock, startedAt = null, hint = "";
  let shown = "connecting";
  let said = "listening"; // the last state the server told us
  const silence = new SilenceWatch();

  const mine = (handler) => (...args) => { if (current === call) handler(...args); };
  const show = (state) => {
    if (state !== shown) view.showState(state);
    shown = state;
  };

  const call = new Call({
    config: config ?? loadConfig(),
    deviceId: remembered(),
    on: {
      microphone: mine((stream, fellBack) => {
        meter ??= new LevelMeter(audioContext, mine((percent, elapsed) => {
          view.showLevel(percent);
          const silent = silence.update(percent, elapsed, shown === "listening");
          view.showMicHint(silent ? HINTS.silent : hint, silent);
        }));
        meter.attach(stream);
        silence.reset();
        hint = fellBack ? HINTS.chosenMissing : "";
        refreshMicrophones(stream.getAudioTracks()[0].getSettings().deviceId);
        if (shown === "connecting") view.showState("connecting");
      }),

      connected: mine(() => {
        startedAt = performance.now();
        view.showTimer(0);
        clock = setInterval(() => view.showTimer((performance.now() - startedAt) / 1000), 1000);
        microphone.disabled = false;
        view.announce("Connected. You can talk now.");
        show(said);
        navigator.wakeLock?.request("screen").then(
          (lock) => { if (current === call) wakeLock = lock; else lock.release(); },
          () => {},
        );
      }),

      unsteady: mine((unsteady) => show(unsteady ? "reconnecting" : said)),

      message: mine((message) => {
        if (message.type === "transcript") {
          view.showCaption(message, config?.agent?.name ?? "Assistant");
        } else if (message.type === "turn") {
          showTurn(message);
        } else if (message.type === "state" && ["listening", "thinking", "speaking"].includes(message.state)) {
          said = message.state;
          if (call.connected) show(said); // also proof that an unsteady connection is back
        }
      }),

      blocked: mine((blocked) => { hear.hidden = !blocked; }),

      microphoneLost: mine(async () => {
        try {
          if (await call.switchMicrophone("")) hint = HINTS.replaced;
        } catch {
          if (current === call) view.showError(new CallProblem("mic-lost"));
        }
      }),

      ended: mine((outcome) => {
        current = null;
        clearInterval(clock);
        meter?.stop();
        audioContext.close().catch(() => {});
        wakeLock?.release().catch(() => {});
        if (startedAt !== null) view.showTimer((performance.now() - startedAt) / 1000);
        hear.hidden = true;
        microphone.disabled = false;
        view.showLevel(null);
        view.showMicHint(HINTS.idle);
        view.showButton("call");
        view.settleCaptions();
        showOutcome(outcome, startedAt !== null);
      }),
    },
  });
  current = call;
  call.start();
}

function showOutcome({ by, reason, problem }, hadConnected) {
  if (problem) {
    view.showError(problem);
    if (hadConnected) view.showState("ended", `${problemWords(problem)[0]}.`);
    else view.showState("ready");
    view.announce("");
    const wait = problem.kind === "busy" ? problem.detail.retryAfter : null;
    if (wait) retryTimer = setTimeout(() => view.showError(new CallProblem("free")), Math.min(wait, 3600) * 1000);
    return;
  }
  const why = by === "server" ? endedWords(reason) : hadConnected ? "You hung up." : "You hung up before it was answered.";
  view.showState("ended", why);
  view.announce(`${STATES.ended[0]}. ${why}`);
}

// --- microphones ------------------------------------------------------------

async function refreshMicrophones(inUse) {
  const list = await listMicrophones();
  const wanted = remembered();
  // The list shows what is really in use when the remembered one is gone.
  const chosen = wanted && inUse && list.some(({ id }) => id === inUse) && inUse !== wanted ? "" : wanted;
  view.showMicrophones(list, chosen);
  if (!current) view.showMicHint(list.length ? HINTS.idle : HINTS.names);
}

microphone.addEventListener("change", async () => {
  const call = current;
  const before = remembered();
  remember(microphone.value);
  if (!call?.connected) return;
  view.showError(null);
  try {
    await call.switchMicrophone(microphone.value);
  } catch {
    if (current !== call) return;
    remember(before);
    microphone.value = before;
    view.showError(new CallProblem("mic-switch"));
  }
});

// --- the page ---------------------------------------------------------------

callButton.addEventListener("click", (event) => {
  if (event.detail > 1) return; // the second half of a double click
  if (current) current.end({ by: "caller" });
  else startCall();
});

hear.addEventListener("click", () => {
  callButton.focus();
  hear.hidden = true;
  current?.hear();
});

readCaptions.addEventListener("change", () => {
  captions.setAttribute("aria-live", readCaptions.checked ? "polite" : "off");
});

window.addEventListener("pagehide", () => current?.end({ by: "page" }));
navigator.mediaDevices?.addEventListener?.("devicechange", () => refreshMicrophones());

view.showLevel(null);
setObjective(700);
try {
  checkSupport();
  refreshMicrophones();
} catch (problem) {
  view.showError(problem);
}
loadConfig().catch((problem) => {
  if (!current && !document.getElementById("error").hasChildNodes()) view.showError(problem);
});
