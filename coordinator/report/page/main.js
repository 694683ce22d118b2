// Draws every section, or those that the data names: a plan has no run to tell
// of. One that fails says so in its place and on the console, and does not take
// the others with it.

const kSections = {
  figures: drawFigures, loss: drawLoss, speed: drawSpeed, "device-time": drawDeviceTime,
  timeline: drawTimeline, differences: drawDifferences, plan: drawPlan, events: drawEvents,
  job: drawJob,
};

const reportData = JSON.parse(document.getElementById("report-data").textContent);
drawHeader(reportData);
for (const [id, draw] of Object.entries(kSections)) {
  const section = document.getElementById(id);
  if (reportData.sections && !reportData.sections.includes(id)) {
    section.remove();
    document.querySelector(`nav a[href="#${id}"]`).remove();
    continue;
  }
  try {
    draw(section, reportData);
    section.dataset.drawn = "true";
  } catch (error) {
    console.error(`section ${id}: ${error.stack}`);
    section.append(el("p", {class: "missing"}, `This section could not be drawn: ${error.message}`));
  }
}
