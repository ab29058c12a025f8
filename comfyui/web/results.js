// Shows on a TACache node what it has done: the text that the node returns under "ui".
import { app } from "../../scripts/app.js";
import { ComfyWidgets } from "../../scripts/widgets.js";

const NODES = ["TACacheCalibrate", "TACachePlan", "TACacheFit"];
const NAME = "result";

// The read-only text field of a node, added when the node has its first result.
function field(node) {
  const known = node.widgets?.find((widget) => widget.name === NAME);
  if (known) return known;
  const { widget } = ComfyWidgets.STRING(node, NAME, ["STRING", { multiline: true }], app);
  widget.options.read_only = true;
  widget.options.serialize = false; // it is no input of the node ...
  widget.serialize = false; // ... and is not saved with the workflow
  if (widget.element) widget.element.readOnly = true;
  const [width, height] = node.computeSize();
  node.setSize([Math.max(node.size[0], width), Math.max(node.size[1], height)]);
  return widget;
}

app.registerExtension({
  name: "TACache.Results",
  beforeRegisterNodeDef(nodeType, nodeData) {
    if (!NODES.includes(nodeData.name)) return;
    const before = nodeType.prototype.onExecuted;
    nodeType.prototype.onExecuted = function (output) {
      before?.apply(this, arguments);
      if (!output?.text) return;
      field(this).value = [output.text].flat().join("\n");
      this.setDirtyCanvas?.(true, true);
    };
  },
});
