// The timeline itself: a canvas, since a step has thousands of instructions.
// Wheel or buttons zoom, dragging or arrow keys move, hovering names.

const kRow = {height: 11, laneGap: 6, groupTitle: 24, left: 128, axis: 24};

class TimelineView {
  constructor(data) {
    this.groups = timelineGroups(data);
    this.comparesRows = Boolean(data.predicted && data.measured);
    this.end = Math.max(data.predicted?.step_time_s ?? 0, data.measured?.step_time_s ?? 0,
                        ...this.groups.flatMap((g) => g.lanes).flatMap((lane) =>
                            [lane.predicted.at(-1)?.end ?? 0, lane.measured.at(-1)?.end ?? 0]));
    this.from = 0;
    this.to = this.end;
    this.rows = [];
    this.canvas = el("canvas", {role: "img", tabindex: "0", "aria-label":
        "Timeline of one step: for each rank and lane, predicted instructions above measured ones"});
    this.layOut();
    this.listen();
  }

  layOut() {
    let y = kRow.axis;
    for (const group of this.groups) {
      group.y = y;
      y += kRow.groupTitle;
      for (const lane of group.lanes) {
        lane.y = y;
        for (const kind of ["predicted", "measured"]) {
          if (!lane[kind].length) continue;
          this.rows.push({y, kind, events: lane[kind]});
          y += kRow.height + 1;
        }
        y += kRow.laneGap;
      }
    }
    this.height = y + 4;
  }

  x(time) {
    return kRow.left + (time - this.from) / (this.to - this.from) * (this.width - kRow.left);
  }

  timeAt(x) {
    return this.from + (x - kRow.left) / (this.width - kRow.left) * (this.to - this.from);
  }

  draw() {
    this.width = this.canvas.clientWidth || 1000;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    this.canvas.style.height = `${this.height}px`;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.font = '12px system-ui, "DejaVu Sans", sans-serif';
    this.drawAxis(context);
    this.drawLabels(context);
    context.save();
    context.beginPath();
    context.rect(kRow.left, 0, this.width - kRow.left, this.height);
    context.clip();
    const numDrawn = this.rows.reduce((sum, row) => sum + this.drawRow(context, row), 0);
    context.restore();
    this.canvas.dataset.events = numDrawn;
  }

  drawAxis(context) {
    const {width, height} = this;
    for (const time of ticks(this.from, this.to, 8)) {
      context.strokeStyle = color("grid");
      context.beginPath();
      context.moveTo(this.x(time), kRow.axis - 6);
      context.lineTo(this.x(time), height);
      context.stroke();
      context.fillStyle = color("soft");
      context.textAlign = this.x(time) > width - 40 ? "right" : "center";
      context.fillText(formatSeconds(time), this.x(time), 13);
    }
  }

  drawLabels(context) {
    context.textAlign = "left";
    for (const group of this.groups) {
      context.fillStyle = color("ink");
      context.fillText(group.label, 0, group.y + 16);
      context.fillStyle = color("soft");
      for (const lane of group.lanes) context.fillText(lane.name.replaceAll("_", " "), 0, lane.y + 10);
    }
  }

  // Returns how many events fell into view.
  drawRow(context, row) {
    context.fillStyle = color("grid");
    context.fillRect(kRow.left, row.y, this.width - kRow.left, kRow.height);
    context.globalAlpha = row.kind === "predicted" && this.comparesRows ? 0.55 : 1;
    const fills = new Map();
    let numDrawn = 0;
    for (const event of row.events) {
      if (event.end < this.from || event.start > this.to) continue;
      if (!fills.has(event.color)) fills.set(event.color, color(event.color));
      context.fillStyle = fills.get(event.color);
      const x = this.x(event.start);
      // A hairline between neighbours, as far as they are wide enough for one.
      const width = this.x(event.end) - x;
      context.fillRect(x, row.y, Math.max(0.6, width > 3 ? width - 0.6 : width), kRow.height);
      ++numDrawn;
    }
    context.globalAlpha = 1;
    return numDrawn;
  }

  zoom(factor, centre) {
    const length = Math.min(this.end, Math.max(this.end * 1e-4, (this.to - this.from) * factor));
    const share = (centre - this.from) / (this.to - this.from);
    this.from = Math.min(Math.max(0, centre - share * length), this.end - length);
    this.to = this.from + length;
    this.draw();
  }

  move(time) {
    const length = this.to - this.from;
    this.from = Math.min(Math.max(0, this.from + time), this.end - length);
    this.to = this.from + length;
    this.draw();
  }

  middle() {
    return (this.from + this.to) / 2;
  }

  hover(event) {
    const box = this.canvas.getBoundingClientRect();
    const time = this.timeAt(event.clientX - box.left);
    const y = event.clientY - box.top;
    const row = this.rows.find((r) => y >= r.y && y <= r.y + kRow.height);
    const slack = (this.to - this.from) / this.width;
    const hit = row?.events.find((e) => e.start - slack <= time && time <= e.end + slack);
    if (!hit) return hideTooltip();
    const {name, microbatch, phase, operation} = hit.instruction;
    showTooltip([`${microbatch} ${name}`.trim(), `${phase} ${operation}`.trim(),
                 `${row.kind}: ${formatSeconds(hit.end - hit.start)} from ${formatSeconds(hit.start)}`]
                    .filter(Boolean).join("\n"), event.clientX, event.clientY);
  }

  listen() {
    let dragX = null;
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      const box = this.canvas.getBoundingClientRect();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.clientX - box.left));
    }, {passive: false});
    this.canvas.addEventListener("pointerdown", (event) => {
      dragX = event.clientX;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointerup", () => { dragX = null; });
    this.canvas.addEventListener("pointermove", (event) => {
      if (dragX === null) return this.hover(event);
      const perPixel = (this.to - this.from) / (this.width - kRow.left);
      this.move((dragX - event.clientX) * perPixel);
      dragX = event.clientX;
    });
    this.canvas.addEventListener("pointerleave", hideTooltip);
    this.canvas.addEventListener("keydown", (event) => {
      const length = this.to - this.from;
      const actions = {ArrowLeft: () => this.move(-length / 8), ArrowRight: () => this.move(length / 8),
                       "+": () => this.zoom(0.7, this.middle()), "-": () => this.zoom(1.4, this.middle())};
      if (!actions[event.key]) return;
      event.preventDefault();
      actions[event.key]();
    });
    window.addEventListener("resize", () => this.draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }
}

function timelineControls(view) {
  const button = (label, act) => {
    const made = el("button", {type: "button"}, label);
    made.addEventListener("click", act);
    return made;
  };
  return el("div", {class: "controls"},
      button("Zoom in", () => view.zoom(0.5, view.middle())),
      button("Zoom out", () => view.zoom(2, view.middle())),
      button("Whole step", () => view.zoom(1e9, 0)),
      "Wheel zooms, dragging moves, hovering names the instruction.");
}

function drawTimeline(section, data) {
  section.append(...missingNotice(data, ["predicted", "measured", "programs"]));
  if (!data.predicted && !data.measured) return;
  const view = new TimelineView(data);
  const summary = [];
  if (data.predicted) {
    summary.push(`predicted ${formatSeconds(data.predicted.step_time_s)}` +
                 (data.measured ? " (upper row, pale)" : ""));
  }
  if (data.measured) summary.push(`measured ${formatSeconds(data.measured.step_time_s)} (lower row)`);
  const shown = data.measured ?? data.predicted;
  const omitted = shown.num_ranks - shown.ranks.length;
  if (omitted > 0) summary.push(`${omitted} more ranks are not drawn`);
  section.append(
      el("p", {class: "note"}, `The step took: ${summary.join("; ")}.`),
      legend([{label: "forward", color: "measured"}, {label: "input gradient", color: "compute"},
              {label: "weight gradient", color: "validation"}, {label: "optimizer", color: "data"},
              {label: "tensor communication", color: "tensor-comm"},
              {label: "data communication", color: "data-comm"},
              {label: "send", color: "checkpoint"}, {label: "receive and wait", color: "bubble"},
              {label: "host", color: "startup"}]),
      timelineControls(view), view.canvas);
  view.draw();
}
