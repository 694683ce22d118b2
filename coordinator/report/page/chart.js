// A line chart as SVG, with a cursor that reads out the values under it.

const kChart = {width: 620, height: 270, left: 58, right: 14, top: 14, bottom: 38};

// About `count` round values that cover [low, high].
function ticks(low, high, count) {
  const rough = (high - low) / count;
  const power = Math.pow(10, Math.floor(Math.log10(rough)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const values = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) {
    values.push(i * step);
  }
  return values;
}

function span(values, from) {
  const finite = values.filter(isNumber);
  let low = Math.min(...finite), high = Math.max(...finite);
  if (from !== undefined) low = Math.min(low, from);
  if (high === low) high = low + (Math.abs(low) || 1) * 0.1;
  const margin = (high - low) * 0.05;
  return [from !== undefined && low >= from ? from : low - margin, high + margin];
}

function linePath(points, x, y) {
  let path = "", pen = "M";
  for (const [px, py] of points) {
    if (!isNumber(py)) { pen = "M"; continue; }
    path += `${pen}${x(px).toFixed(1)},${y(py).toFixed(1)}`;
    pen = "L";
  }
  return path;
}

function drawAxes(root, x, y, xRange, yRange, options) {
  const {width, height, left, right, top, bottom} = kChart;
  for (const value of ticks(yRange[0], yRange[1], 5)) {
    root.append(
        svg("line", {class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value)}),
        svg("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"},
            (options.formatY ?? formatTick)(value)));
  }
  for (const value of ticks(xRange[0], xRange[1], 6)) {
    if (!Number.isInteger(value)) continue;
    root.append(svg("text", {x: x(value), y: height - bottom + 18, "text-anchor": "middle"},
                    formatTick(value)));
  }
  root.append(
      svg("line", {class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom}),
      svg("text", {x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle"}, "step"));
}

// Shows what every series holds at the step nearest to the pointer.
function addCursor(root, options, x, steps) {
  const cursor = svg("line", {class: "cursor", y1: kChart.top,
                              y2: kChart.height - kChart.bottom, visibility: "hidden"});
  root.append(cursor);
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const px = (event.clientX - box.left) / box.width * kChart.width;
    let nearest = steps[0];
    for (const step of steps) {
      if (Math.abs(x(step) - px) < Math.abs(x(nearest) - px)) nearest = step;
    }
    cursor.setAttribute("x1", x(nearest));
    cursor.setAttribute("x2", x(nearest));
    cursor.setAttribute("visibility", "visible");
    const lines = options.series.flatMap((series) => {
      const point = series.points.find(([step]) => step === nearest);
      if (!point || !isNumber(point[1])) return [];
      return [`${series.label}: ${(options.formatValue ?? formatTick)(point[1])}`];
    });
    showTooltip([`step ${nearest}`, ...lines].join("\n"), event.clientX, event.clientY);
  });
  root.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    hideTooltip();
  });
}

// options: {title, series: [{label, color, points: [[step, value]], dots, dashed}],
// level: {label, value}, from, formatY, formatValue}.
function lineChart(options) {
  const {width, height, left, right, top, bottom} = kChart;
  const all = options.series.flatMap((series) => series.points);
  const values = all.map((point) => point[1]);
  if (!values.some(isNumber)) return el("p", {class: "note"}, "No finite value was recorded.");
  if (options.level) values.push(options.level.value);
  const steps = [...new Set(all.map((point) => point[0]))].sort((a, b) => a - b);
  const xRange = steps.length > 1 ? [steps[0], steps.at(-1)] : [steps[0] - 1, steps[0] + 1];
  const yRange = span(values, options.from);
  const x = (v) => left + (v - xRange[0]) / (xRange[1] - xRange[0]) * (width - left - right);
  const y = (v) => height - bottom - (v - yRange[0]) / (yRange[1] - yRange[0]) * (height - top - bottom);
  const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
                           "aria-label": options.title, "data-points": all.length});
  drawAxes(root, x, y, xRange, yRange, options);
  if (options.level) {
    const at = y(options.level.value);
    root.append(
        svg("line", {x1: left, x2: width - right, y1: at, y2: at,
                     stroke: "var(--soft)", "stroke-dasharray": "5 4"}),
        svg("text", {x: width - right, y: at - 6, "text-anchor": "end"}, options.level.label));
  }
  for (const series of options.series) {
    const stroke = `var(--${series.color})`;
    if (series.dots) {
      for (const [px, py] of series.points) {
        if (isNumber(py)) root.append(svg("circle", {cx: x(px), cy: y(py), r: 3.5, fill: stroke}));
      }
    } else {
      root.append(svg("path", {d: linePath(series.points, x, y), fill: "none", stroke,
                               "stroke-width": 1.8, "stroke-linejoin": "round",
                               ...(series.dashed ? {"stroke-dasharray": "6 4"} : {})}));
    }
  }
  addCursor(root, options, x, steps);
  return el("figure", {}, root, options.series.length > 1 ? legend(options.series) : null);
}
