// What the timeline shows, as plain values: for each rank its lanes, for each
// lane a predicted and a measured row.

// An instruction's colour: compute by phase, everything else by lane.
const kPhaseColors = {
  forward: "measured", input_gradient: "compute", weight_gradient: "validation",
  recompute: "checkpoint",
  gradient_reduce: "data-comm", optimizer: "data", parameter_gather: "data-comm",
};
const kLaneColors = {
  tensor_comm: "tensor-comm", data_comm: "data-comm", send_next: "checkpoint",
  receive_previous: "bubble", send_previous: "checkpoint", receive_next: "bubble",
  host: "startup",
};

// Names are compared without regard to how their words are joined.
function canonical(name) {
  return name.toLowerCase().replaceAll(/[- ]/g, "_");
}

// Falls back to one unnamed lane when the run's Programs could not be read.
function instructionOf(programs, stage, id) {
  const program = programs?.[String(stage)];
  const found = program?.instructions[id];
  if (!found) return {lane: "lane", phase: "", microbatch: "", name: `instruction ${id}`, operation: ""};
  const [lane, phase, microbatch, name, operation] = found;
  return {lane: program.lanes[lane], phase: program.phases[phase], microbatch, name, operation};
}

function colorOf(instruction) {
  const lane = canonical(instruction.lane);
  if (lane !== "compute" && kLaneColors[lane]) return kLaneColors[lane];
  return kPhaseColors[canonical(instruction.phase)] ?? "accent";
}

function addEvents(lanes, kind, rank, programs) {
  for (const [id, start, end] of rank?.events ?? []) {
    const instruction = instructionOf(programs, rank.stage, id);
    if (!lanes.has(instruction.lane)) lanes.set(instruction.lane, {predicted: [], measured: []});
    lanes.get(instruction.lane)[kind].push({start, end, instruction, color: colorOf(instruction)});
  }
}

// [{label, lanes: [{name, predicted: [event], measured: [event]}]}], one a
// measured rank, or one a predicted stage when nothing was measured.
function timelineGroups(data) {
  const predictedByStage = new Map((data.predicted?.ranks ?? []).map((rank) => [rank.stage, rank]));
  const shown = data.measured?.ranks ?? data.predicted?.ranks ?? [];
  return shown.map((rank) => {
    const lanes = new Map();
    addEvents(lanes, "predicted", predictedByStage.get(rank.stage), data.programs);
    if (data.measured) addEvents(lanes, "measured", rank, data.programs);
    const order = data.programs?.[String(rank.stage)]?.lanes ?? [];
    const sorted = [...lanes].sort((a, b) => order.indexOf(a[0]) - order.indexOf(b[0]));
    return {label: `rank ${rank.rank} · stage ${rank.stage}`,
            lanes: sorted.map(([name, rows]) => ({name, ...rows}))};
  });
}
