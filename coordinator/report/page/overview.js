// The top of the page: verdict, set-up and key figures; and the events.

function verdictText(summary) {
  const parts = [];
  if (isNumber(summary.num_steps)) parts.push(`after ${summary.num_steps} steps`);
  if (isNumber(summary.wall_s)) parts.push(`in ${formatSeconds(summary.wall_s)}`);
  if (summary.num_recoveries) {
    parts.push(`with ${summary.num_recoveries} worker${summary.num_recoveries === 1 ? "" : "s"} replaced`);
  }
  const reason = summary.reason ? `: ${summary.reason}` : "";
  return `${parts.length ? " " : ""}${parts.join(" ")}${reason}.`;
}

function drawHeader(data) {
  const summary = data.summary;
  const name = data.job?.name ?? data.run;
  document.title = `${name} · Millrace ${data.sections ? "plan" : "run"}`;
  document.getElementById("title").textContent = name;
  const status = String(summary.status || "unfinished");
  const word = status[0].toUpperCase() + status.slice(1);
  document.getElementById("verdict").append(
      el("span", {class: `word ${status}`}, word), verdictText(summary));
  const setup = [data.run];
  if (data.job) {
    setup.push(`${formatCount(data.job.num_parameters)} parameters, ` +
               `sequence ${data.job.sequence_length}, batch ${data.job.global_batch}, ` +
               `${data.job.precision} on ${data.job.backend}`);
  }
  if (data.plan?.layout) setup.push(formatLayout(data.plan.layout));
  if (data.machine) setup.push(data.machine.description || data.machine.name);
  document.getElementById("setup").textContent = setup.join(" · ");
}

function figureCard(label, value, detail) {
  return el("div", {class: "figure"}, el("div", {class: "label"}, label),
            el("div", {class: "value"}, value), el("div", {class: "detail"}, detail ?? ""));
}

function truthDetail(summary) {
  const factor = summary.measured_over_predicted;
  if (!isNumber(factor)) return "no prediction recorded";
  const off = Math.abs(factor - 1);
  return `predicted ${formatSeconds(summary.predicted_step_time_s)}: ` +
      (off < 0.005 ? "as measured" : `${formatPercent(off)} ${factor > 1 ? "slower" : "faster"} than planned`);
}

function drawFigures(section, data) {
  const summary = data.summary;
  const cards = [];
  if (isNumber(summary.final_loss)) {
    const ratio = summary.final_loss / summary.first_loss;
    cards.push(figureCard("Loss", summary.final_loss.toFixed(3),
                          `${formatPercent(ratio)} of the first, ${summary.first_loss.toFixed(3)}`));
  }
  if (isNumber(summary.validation_loss)) {
    cards.push(figureCard("Validation loss", summary.validation_loss.toFixed(3), "newest"));
  }
  for (const [set, loss] of Object.entries(summary.evaluation ?? {})) {
    cards.push(figureCard(`Loss of ${set}`, loss.toFixed(3),
                          `newest; perplexity ${Math.exp(loss).toPrecision(4)}`));
  }
  if (isNumber(summary.step_time_s)) {
    cards.push(figureCard("Step time", formatSeconds(summary.step_time_s), truthDetail(summary)));
  }
  if (isNumber(summary.tokens_per_s)) {
    cards.push(figureCard("Tokens per second", formatCount(summary.tokens_per_s), "median, all devices"));
  }
  const compute = summary.shares?.find((share) => share.key === "compute_s");
  if (compute) {
    const lost = [...summary.shares].filter((share) => share.key !== "compute_s")
        .sort((a, b) => b.share - a.share)[0];
    cards.push(figureCard("Devices computing", formatPercent(compute.share),
                          `most lost to ${lost.label}: ${formatPercent(lost.share)}`));
  }
  section.append(...cards);
  if (cards.length === 0) section.append(...missingNotice(data, ["steps", "time"]));
}

function eventPlace(event) {
  return ["generation", "step", "rank"].filter((key) => isNumber(event[key]))
      .map((key) => `${key} ${event[key]}`).join(", ");
}

function drawEvents(section, data) {
  section.append(...missingNotice(data, ["events", "result"]));
  if (!data.events) return;
  const {num_events, list} = data.events;
  if (num_events > list.length) {
    section.append(el("p", {class: "note"},
        `The first and last ${list.length / 2} of ${num_events} events.`));
  }
  section.append(table("Events of the run",
      [{title: "At", number: true}, {title: "Event"}, {title: "Where"}, {title: "Detail"}],
      list.map((event) => ({cells: [
        isNumber(event.time_s) ? `${event.time_s.toFixed(1)} s` : "–",
        String(event.event ?? "").replaceAll("_", " "),
        eventPlace(event), String(event.detail ?? "")]}))));
}

function drawJob(section, data) {
  section.append(...missingNotice(data, ["job", "job_yaml", "machine"]));
  if (data.machine) {
    section.append(el("p", {class: "note"},
        `Hardware profile ${data.machine.name}, ` + (data.machine.is_measured
            ? `measured ${data.machine.date} with ${data.machine.num_ranks} workers of ` +
              `${data.machine.threads_per_device} threads.`
            : `from data sheets, ${data.machine.date}.`)));
  }
  if (!data.job_yaml) return;
  section.append(el("details", {}, el("summary", {}, "The job with every default spelled out"),
                    el("pre", {}, data.job_yaml)));
}
