// One call over WebRTC. Knows nothing of the page: it reports through `on`.
// A Call is used once. After end() it is silent for good: its listeners hang on
// one AbortSignal, and every wait checks that signal before going on.
import { CallProblem } from "./words.js";
import { openMicrophone, stopStream } from "./microphone.js";

const CONNECT_MS = 15_000;
const GATHER_MS = 2_000;
const LOST_MS = 12_000;

// Retry-After is seconds or a date; null when it says nothing useful.
export function retryAfterSeconds(header, now = Date.now()) {
  if (!header) return null;
  const seconds = /^\d+$/.test(header.trim()) ? Number(header) : (Date.parse(header) - now) / 1000;
  return Number.isFinite(seconds) && seconds > 0 ? Math.ceil(seconds) : null;
}

export class Call {
  #abort = new AbortController();
  #timers = new Set();
  #config; #deviceId; #on;
  #pc; #channel; #sender; #stream; #audio;
  #connectTimer; #lostTimer; #ticket = 0;
  connected = false;

  // config: a promise of /api/config. on: {microphone, answering, connected,
  // unsteady, message, blocked, microphoneLost, ended}, all optional.
  // Make it inside the click, so that the audio element may play.
  constructor({ config, deviceId, on }) {
    this.#config = config;
    this.#deviceId = deviceId;
    this.#on = on;
    this.#audio = document.createElement("audio");
    this.#audio.autoplay = true;
    this.#audio.setAttribute("playsinline", "");
    this.#audio.srcObject = new MediaStream();
    document.body.append(this.#audio);
    this.#play();
  }

  get ended() { return this.#abort.signal.aborted; }

  async start() {
    try {
      const config = await this.#config;
      if (this.ended) return;
      const { stream, fellBack } = await openMicrophone(this.#deviceId);
      if (this.ended) return stopStream(stream);
      this.#takeStream(stream, fellBack);
      this.#connectTimer = this.#later(CONNECT_MS, () => this.end({ problem: new CallProblem("timeout") }));
      await this.#connect(config, stream);
    } catch (error) {
      if (this.ended) return;
      this.end({ problem: error instanceof CallProblem ? error : new CallProblem("server", { message: String(error) }) });
    }
  }

  async #connect(config, stream) {
    const iceServers = (config.ice_servers ?? []).map(({ urls, username, credential }) => ({
      urls, ...(username != null && { username }), ...(credential != null && { credential }),
    }));
    const pc = new RTCPeerConnection({ iceServers });
    this.#pc = pc;
    this.#listen(pc, "connectionstatechange", () => this.#connectionChanged(pc.connectionState));
    this.#listen(pc, "track", (event) => {
      this.#audio.srcObject = event.streams[0] ?? new MediaStream([event.track]);
      this.#play();
    });
    this.#channel = pc.createDataChannel("events");
    this.#listen(this.#channel, "message", (event) => this.#message(event.data));
    this.#listen(this.#channel, "close", () => this.end({ by: "server" }));
    this.#sender = pc.addTrack(stream.getAudioTracks()[0], stream);

    await pc.setLocalDescription(await pc.createOffer());
    await this.#gathered(pc);
    if (this.ended) return;
    this.#on.answering?.();
    const answer = await this.#offer(pc.localDescription);
    if (this.ended) return;
    await pc.setRemoteDescription({ type: answer.type, sdp: answer.sdp });
  }

  #gathered(pc) {
    return new Promise((resolve) => {
      if (pc.iceGatheringState === "complete") return resolve();
      const timer = this.#later(GATHER_MS, resolve);
      this.#listen(pc, "icegatheringstatechange", () => {
        if (pc.iceGatheringState !== "complete") return;
        this.#cancel(timer);
        resolve();
      });
      this.#abort.signal.addEventListener("abort", resolve, { once: true });
    });
  }

  async #offer({ sdp, type }) {
    let response;
    try {
      response = await fetch("/api/offer", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify({ sdp, type }),
        signal: this.#abort.signal,
      });
    } catch {
      throw new CallProblem("unreachable");
    }
    const body = await response.json().catch(() => null);
    if (response.ok && body?.sdp && body?.type) return body;
    if (response.status === 503 || response.status === 429) {
      throw new CallProblem("busy", { retryAfter: retryAfterSeconds(response.headers.get("Retry-After")) });
    }
    if (response.status >= 400 && response.status < 500) {
      const message = typeof body?.error === "string" ? body.error.slice(0, 200) : "";
      throw new CallProblem("rejected", { message });
    }
    throw new CallProblem("server");
  }

  #connectionChanged(state) {
    this.#cancel(this.#lostTimer);
    if (state === "connected") {
      this.#cancel(this.#connectTimer);
      const first = !this.connected;
      this.connected = true;
      if (first) this.#on.connected?.();
      else this.#on.unsteady?.(false);
    } else if (state === "disconnected") {
      this.#on.unsteady?.(true);
      this.#lostTimer = this.#later(LOST_MS, () => this.end({ problem: new CallProblem("lost") }));
    } else if (state === "failed") {
      this.end({ problem: new CallProblem(this.connected ? "lost" : "timeout") });
    } else if (state === "closed") {
      this.end({ by: "server" });
    }
  }

  #message(data) {
    let message;
    try { message = JSON.parse(data); } catch { return; }
    if (typeof message !== "object" || message === null) return;
    if (message.type === "state" && message.state === "ended") {
      this.end({ by: "server", reason: message.reason });
    } else {
      this.#on.message?.(message);
    }
  }

  // Also for the "Tap to hear" button, from inside its click.
  #play() {
    this.#audio.play().then(
      () => { if (!this.ended) this.#on.blocked?.(false); },
      (error) => { if (!this.ended && error.name === "NotAllowedError") this.#on.blocked?.(true); },
    );
  }

  hear() { this.#play(); }

  #takeStream(stream, fellBack) {
    stopStream(this.#stream);
    this.#stream = stream;
    const [track] = stream.getAudioTracks();
    this.#listen(track, "ended", () => { if (this.#stream === stream) this.#on.microphoneLost?.(); });
    this.#on.microphone?.(stream, fellBack);
  }

  // Resolves to true when the caller is now heard through that microphone.
  async switchMicrophone(deviceId) {
    const ticket = ++this.#ticket;
    const { stream, fellBack } = await openMicrophone(deviceId);
    if (this.ended || ticket !== this.#ticket) {
      stopStream(stream);
      return false;
    }
    await this.#sender?.replaceTrack(stream.getAudioTracks()[0]);
    if (this.ended || ticket !== this.#ticket) {
      stopStream(stream);
      return false;
    }
    this.#takeStream(stream, fellBack);
    return true;
  }

  // outcome: {by: "caller"|"server"|"page", reason?} or {problem}.
  end(outcome) {
    if (this.ended) return;
    this.#abort.abort();
    this.#timers.forEach(clearTimeout);
    this.#timers.clear();
    stopStream(this.#stream);
    this.#audio.pause();
    this.#audio.srcObject = null;
    this.#audio.remove();
    this.#close(outcome);
    this.#on.ended?.(outcome);
  }

  #close(outcome) {
    const pc = this.#pc;
    if (!pc) return;
    let wait = 0;
    if (outcome.by !== "server" && this.#channel?.readyState === "open") {
      try { this.#channel.send('{"type":"hangup"}'); wait = 150; } catch { /* already closing */ }
    }
    // Closing at once can drop the last message; a page going away cannot wait.
    if (wait && outcome.by !== "page") setTimeout(() => pc.close(), wait);
    else pc.close();
  }

  #listen(target, type, handler) {
    target.addEventListener(type, handler, { signal: this.#abort.signal });
  }

  #later(ms, action) {
    const timer = setTimeout(() => { this.#timers.delete(timer); action(); }, ms);
    this.#timers.add(timer);
    return timer;
  }

  #cancel(timer) {
    clearTimeout(timer);
    this.#timers.delete(timer);
  }
}
