// The last turns: how long the caller waited, and on what.
import { make } from "./view.js";

const KEEP = 5;
const STAGES = [
  ["ingress", "hear", "your voice reaching us"],
  ["endpointing", "hear", "noticing that you had finished"],
  ["asr", "hear", "understanding the words"],
  ["llm", "think", "thinking of an answer"],
  ["chunking", "think", "settling on the first words"],
  ["tts", "speak", "starting to speak"],
  ["egress", "speak", "the voice reaching you"],
];

const list = document.getElementById("latency");
const empty = document.getElementById("latency-empty");
let objective = 700;
let turns = []; // newest first

export function seconds(ms) {
  return ms < 5 ? "under 0.01 s" : `${(ms / 1000).toFixed(2)} s`;
}

function short(ms) {
  return `${Number((ms / 1000).toFixed(2))} s`;
}

const number = (value) => (Number.isFinite(value) && value >= 0 ? value : null);

export function setObjective(ms) {
  if (number(ms)) objective = ms;
  document.getElementById("latency-aim").textContent = `The dashed line is our aim: ${short(objective)} or less.`;
}

export function clearTurns() {
  turns = [];
  list.replaceChildren();
  empty.hidden = false;
}

export function showTurn(message) {
  const turn = read(message);
  turns = [turn, ...turns.filter((other) => other.number !== turn.number)].slice(0, KEEP);
  const openBefore = new Set([...list.querySelectorAll("details[open]")].map((d) => d.closest("li").dataset.turn));
  const newest = list.firstElementChild?.dataset.turn;
  // Bars share one scale, so every row is drawn again when a turn arrives.
  const longest = Math.max(objective * 1.25, ...turns.map((t) => t.drawn));
  const focused = document.activeElement?.closest?.("#latency li")?.dataset.turn;
  list.replaceChildren(...turns.map((t, index) => {
    const open = index === 0 || (t.number !== newest && openBefore.has(t.number));
    return row(t, longest, open);
  }));
  if (focused) list.querySelector(`li[data-turn="${CSS.escape(focused)}"] summary`)?.focus({ preventScroll: true });
  empty.hidden = true;
}

function read(message) {
  const over = new Set(Array.isArray(message.over_budget) ? message.over_budget : []);
  const stages = STAGES
    .map(([id, group, label]) => ({ id, group, label, ms: number(message.stages_ms?.[id]), over: over.has(id) }))
    .filter((stage) => stage.ms !== null);
  const sum = stages.reduce((total, stage) => total + stage.ms, 0);
  const heard = number(message.mouth_to_ear_ms);
  const gap = heard ?? number(message.response_ms);
  const rest = gap === null ? 0 : gap - sum;
  if (heard !== null && stages.length && rest >= 20) {
    stages.push({ id: "other", group: "other", label: "not measured in detail", ms: rest, over: false });
  }
  return {
    number: String(message.turn),
    said: typeof message.user_text === "string" ? message.user_text.trim() : "",
    interrupted: Boolean(message.interrupted),
    budget: number(message.budget_ms),
    gap, stages,
    estimated: heard === null,
    late: gap !== null && gap > objective,
    drawn: Math.max(gap ?? 0, stages.reduce((total, stage) => total + stage.ms, 0)),
  };
}

function row(turn, longest, open) {
  const item = make("li");
  item.dataset.turn = turn.number;
  item.dataset.late = String(turn.late);

  const head = make("div", "turn-head");
  const gap = make("p", "gap");
  if (turn.gap === null) gap.append(turn.interrupted ? "You spoke again before it answered" : "No answer was measured");
  else gap.append("Answered after ", make("strong", "", seconds(turn.gap)));
  head.append(gap);
  if (turn.gap !== null) {
    // Without the way to the caller and back, "within" would be too kind.
    if (turn.late) head.append(make("p", "verdict late", "▲ slower than our aim"));
    else if (turn.estimated) head.append(make("p", "verdict partly", "measured at our end only"));
    else head.append(make("p", "verdict", "✓ within our aim"));
  }
  item.append(head);
  if (turn.said) item.append(make("p", "quote", `“${turn.said}”`));
  if (!turn.stages.length) return item;

  item.append(bar(turn, longest));
  const slow = turn.stages.filter((stage) => stage.over).length;
  const details = make("details");
  details.open = open;
  const summary = make("summary", "", "Where the time went");
  if (slow) summary.append(make("span", "slow-count", `▲ ${slow} slow step${slow === 1 ? "" : "s"}`));
  details.append(summary, steps(turn));
  if (turn.estimated && turn.gap !== null) details.append(make("p", "hint", "Without the sound’s way to us and back to you."));
  item.append(details);
  return item;
}

function bar(turn, longest) {
  const frame = make("div", "bar");
  frame.setAttribute("role", "img");
  frame.setAttribute("aria-label",
    `${turn.gap === null ? "Time" : seconds(turn.gap)} against our aim of ${short(objective)}. ` +
    turn.stages.map((s) => `${s.label} ${seconds(s.ms)}${s.over ? ", too slow" : ""}`).join("; "));
  const percent = (ms) => `${(ms / longest) * 100}%`;
  for (const stage of turn.stages) {
    if (stage.ms <= 0) continue;
    const segment = make("span", "segment");
    segment.dataset.group = stage.group;
    segment.dataset.over = String(stage.over);
    segment.title = `${stage.label}: ${seconds(stage.ms)}`;
    segment.style.width = percent(stage.ms);
    frame.append(segment);
  }
  const aim = make("span", "aim");
  aim.style.left = percent(objective);
  aim.append(make("span", "aim-label", `aim ${short(objective)}`));
  frame.append(aim);
  return frame;
}

function steps(turn) {
  const table = make("ul", "steps");
  for (const stage of turn.stages) {
    const step = make("li");
    step.dataset.stage = stage.id;
    step.dataset.over = String(stage.over);
    const swatch = make("span", "swatch");
    swatch.dataset.group = stage.group;
    swatch.dataset.over = String(stage.over);
    swatch.setAttribute("aria-hidden", "true");
    const label = make("span", "step-label", stage.label);
    if (stage.over) label.append(" ", make("span", "over", turn.budget ? `▲ over ${short(turn.budget)}` : "▲ too slow"));
    step.append(swatch, label, make("span", "step-time", seconds(stage.ms)));
    table.append(step);
  }
  return table;
}
