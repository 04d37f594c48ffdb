// Which microphone, opening it, and how loud it is.
import { CallProblem, microphoneProblem } from "./words.js";

const KEY = "voicebot.microphone";

export function remembered() {
  try { return localStorage.getItem(KEY) ?? ""; } catch { return ""; }
}

export function remember(deviceId) {
  try { localStorage.setItem(KEY, deviceId); } catch { /* private mode: forget it */ }
}

// Throws where this page or browser can never make a call.
export function checkSupport() {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new CallProblem(window.isSecureContext ? "unsupported" : "insecure");
  }
  if (typeof RTCPeerConnection === "undefined") throw new CallProblem("unsupported");
}

// [{id, label}]; the system default is the page's own first entry, so the
// browser's alias entries are left out. No labels before permission is given.
export async function listMicrophones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.().catch(() => [])) ?? [];
  return devices
    .filter((d) => d.kind === "audioinput" && d.label && !["", "default", "communications"].includes(d.deviceId))
    .map((d) => ({ id: d.deviceId, label: d.label }));
}

// Resolves to {stream, fellBack}: fellBack when the wanted one is not there.
export async function openMicrophone(deviceId) {
  checkSupport();
  const audio = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
  const open = (extra) => navigator.mediaDevices.getUserMedia({ audio: { ...audio, ...extra } });
  try {
    if (deviceId) {
      try {
        return { stream: await open({ deviceId: { exact: deviceId } }), fellBack: false };
      } catch (error) {
        if (!["OverconstrainedError", "NotFoundError"].includes(error.name)) throw error;
        return { stream: await open({}), fellBack: true };
      }
    }
    return { stream: await open({}), fellBack: false };
  } catch (error) {
    throw microphoneProblem(error);
  }
}

export function stopStream(stream) {
  stream?.getTracks().forEach((track) => track.stop());
}

// Reads the loudness of a stream until stopped. onLevel(percent, elapsedMs).
export class LevelMeter {
  #context; #analyser; #source; #frame = 0; #last = 0; #shown = 0; #samples;

  constructor(context, onLevel) {
    this.#context = context;
    this.#analyser = context.createAnalyser();
    this.#analyser.fftSize = 1024;
    this.#samples = new Float32Array(this.#analyser.fftSize);
    this.#last = performance.now();
    const tick = (now) => {
      this.#frame = requestAnimationFrame(tick);
      // A tab in the background gets few frames: don't count its sleep as silence.
      const elapsed = Math.min(250, Math.max(0, now - this.#last));
      this.#last = now;
      // Up at once, down gently: raw loudness flickers too fast to read.
      this.#shown = Math.max(this.#read(), this.#shown - elapsed * 0.15);
      onLevel(Math.round(this.#shown), elapsed);
    };
    this.#frame = requestAnimationFrame(tick);
  }

  attach(stream) {
    this.#source?.disconnect();
    this.#source = this.#context.createMediaStreamSource(stream);
    this.#source.connect(this.#analyser);
  }

  #read() {
    this.#analyser.getFloatTimeDomainData(this.#samples);
    let sum = 0;
    for (const s of this.#samples) sum += s * s;
    const decibels = 10 * Math.log10(sum / this.#samples.length + 1e-12);
    return Math.max(0, Math.min(100, Math.round(((decibels + 60) / 50) * 100)));
  }

  stop() {
    cancelAnimationFrame(this.#frame);
    this.#source?.disconnect();
    this.#source = undefined;
  }
}

// True once nothing was heard for too long while it was the caller's turn.
export class SilenceWatch {
  #quiet = 0; #heardOnce = false;
  static HEARD = 25; // percent of the meter, about -47 dBFS

  update(percent, elapsedMs, callersTurn) {
    if (percent >= SilenceWatch.HEARD) {
      this.#heardOnce = true;
      this.#quiet = 0;
    } else if (callersTurn) {
      this.#quiet += elapsedMs;
    } else {
      this.#quiet = 0;
    }
    // Somebody who has been heard may be thinking: give them longer.
    return this.#quiet > (this.#heardOnce ? 12_000 : 5_000);
  }

  reset() {
    this.#quiet = 0;
    this.#heardOnce = false;
  }
}
