// Every sentence the page can say about a call, in one place.

export const STATES = {
  ready: ["Ready", "Press Call, then just talk."],
  connecting: ["Connecting", "Reaching the assistant…"],
  listening: ["Listening", "Go ahead, it’s your turn."],
  thinking: ["Thinking", "One moment."],
  speaking: ["Speaking", "Interrupt at any time."],
  reconnecting: ["Reconnecting", "The connection dropped. Trying to get it back…"],
  ended: ["Call ended", ""],
};

export const HINTS = {
  allow: "Allow the microphone if your browser asks.",
  names: "Microphone names appear once you allow access.",
  idle: "The bar moves with your voice during a call.",
  silent: "We can’t hear you: is the right microphone chosen?",
  replaced: "Your microphone went away, so we switched to the system default.",
  chosenMissing: "The microphone you chose last time isn’t there, so we’re using the system default.",
};

// A call that could not start, or did not survive. `kind` picks the words below.
export class CallProblem extends Error {
  constructor(kind, detail = {}) {
    super(kind);
    this.name = "CallProblem";
    this.kind = kind;
    this.detail = detail;
  }
}

const PROBLEMS = {
  insecure: ["This page can’t use your microphone", "Browsers only allow that on a secure address. Open this page with https:// (or on localhost) and call again."],
  unsupported: ["This browser can’t make calls", "Please use a recent version of Chrome, Edge, Firefox or Safari."],
  "mic-refused": ["The microphone is blocked", "Allow the microphone for this page in your browser (look for the icon beside the address), then call again."],
  "mic-refused-system": ["The microphone is blocked", "Your device’s privacy settings keep the microphone from this browser. Allow it there, then call again."],
  "mic-missing": ["No microphone found", "Plug one in or turn it on, then call again."],
  "mic-busy": ["The microphone is in use", "Another program seems to be using it. Close that program or choose another microphone, then call again."],
  "mic-failed": ["The microphone didn’t start", "Choose another microphone or reload the page, then call again."],
  "mic-lost": ["Your microphone went away", "Plug it back in or choose another one below: the call is still open."],
  "mic-switch": ["That microphone didn’t start", "You are still heard through the one before. Another program may be using the new one."],
  unreachable: ["We can’t reach the server", "Check your internet connection, then call again in a moment."],
  server: ["Something went wrong on our side", "Please call again in a moment."],
  timeout: ["The call didn’t connect", "Nothing answered within 15 seconds. A firewall or VPN may be in the way: try another network, or call again."],
  lost: ["The connection was lost", "Check your internet connection, then call again."],
};

export function inWords(seconds) {
  if (seconds < 90) return `${seconds} second${seconds === 1 ? "" : "s"}`;
  const minutes = Math.round(seconds / 60);
  return `${minutes} minute${minutes === 1 ? "" : "s"}`;
}

export function problemWords(problem) {
  const { kind, detail = {} } = problem;
  if (kind === "busy") {
    const wait = detail.retryAfter;
    return ["All lines are busy", wait > 0 ? `Please try again in about ${inWords(wait)}.` : "Please try again in a moment."];
  }
  if (kind === "free") return ["A line may be free now", "Please try your call again."];
  if (kind === "rejected") {
    return ["The call wasn’t accepted", detail.message ? `The server said: ${detail.message}` : "Please reload the page and call again."];
  }
  return PROBLEMS[kind] ?? PROBLEMS.server;
}

export function microphoneProblem(error) {
  switch (error?.name) {
    case "NotAllowedError":
    case "SecurityError":
      return new CallProblem(/system/i.test(error.message) ? "mic-refused-system" : "mic-refused");
    case "NotFoundError":
    case "OverconstrainedError":
      return new CallProblem("mic-missing");
    case "NotReadableError":
    case "AbortError":
      return new CallProblem("mic-busy");
    default:
      return new CallProblem("mic-failed");
  }
}

// Why the server ended the call: its own codes (README, "For a client of your own").
const REASONS = {
  hangup: "You hung up.",
  silence: "Nothing was heard for a while.",
  too_long: "The longest time for one call was reached.",
  shutdown: "The service is closing down. Please call again later.",
  engine_failed: "Something went wrong on our side.",
  internal_error: "Something went wrong on our side.",
};

export function endedWords(reason) {
  return Object.hasOwn(REASONS, reason) ? REASONS[reason] : "The assistant hung up.";
}
