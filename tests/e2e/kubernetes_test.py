"""The manifest of `millrace submit --export kubernetes`; no cluster is needed.

    kubernetes_test.py MILLRACE [TEST]...
"""

import os
import subprocess
import sys
import tempfile
import unittest

MILLRACE = ""
SKIPPED = 77  # The exit code that ctest shows as "Skipped".

JOB = """\
# A comment with "quotes", a: colon and 'others'.
name: {name}
model: {{family: llama, vocab_size: 288, hidden: 32, layers: 2, heads: 4, kv_heads: 2,
        ffn_hidden: 64, sequence_length: 32}}

data: {{synthetic: true}}
training: {{steps: 12, global_batch: 8, optimizer: {{learning_rate: 1e-3}}}}
resources: {{devices_per_agent: 2, threads_per_device: 1}}
checkpoint: {checkpoint}
"""
CHECKPOINTS = "{directory: checkpoints, interval_steps: 4}"

# The fields used, as the reference of Kubernetes 1.31 types them. A list holds the schema of
# its items; a key that ends in "?" may be missing; no other keys may be there.
RULE = {"action": str, "onExitCodes?": {"containerName": str, "operator": str, "values": [int]},
        "onPodConditions?": [{"type": str, "status": str}]}
MOUNT = {"name": str, "mountPath": str}
VOLUME = {"name": str, "configMap?": {"name": str}, "emptyDir?": {"medium": str},
          "persistentVolumeClaim?": {"claimName": str}}
CONTAINER = {
    "name": str, "image": str, "command": [str], "args": [str], "workingDir?": str,
    "env": [{"name": str, "valueFrom": {"secretKeyRef": {"name": str, "key": str}}}],
    "resources?": {"limits": {"nvidia.com/gpu": int}},
    "lifecycle?": {"preStop": {"exec": {"command": [str]}}}, "volumeMounts": [MOUNT]}
POD = {
    "subdomain": str, "restartPolicy": str, "terminationGracePeriodSeconds": int,
    "affinity?": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": str,
         "labelSelector": {"matchLabels": {"batch.kubernetes.io/job-name": str}}}]}},
    "containers": [CONTAINER], "volumes": [VOLUME]}
SCHEMAS = {
    "ConfigMap": {"apiVersion": str, "kind": str, "metadata": {"name": str},
                  "data": {"job.yaml": str}},
    "Service": {"apiVersion": str, "kind": str, "metadata": {"name": str},
                "spec": {"clusterIP": str, "publishNotReadyAddresses": bool,
                         "selector": {"batch.kubernetes.io/job-name": str}}},
    "Job": {"apiVersion": str, "kind": str, "metadata": {"name": str},
            "spec": {"completionMode": str, "completions": int, "parallelism": int,
                     "backoffLimit": int, "podFailurePolicy": {"rules": [RULE]},
                     "template": {"spec": POD}}}}


def faults(value, schema, place=""):
    """The places at which the value is not of the schema."""
    if isinstance(schema, list):
        if not isinstance(value, list) or not value:
            return [f"{place}: expected a list"]
        return [fault for i, item in enumerate(value)
                for fault in faults(item, schema[0], f"{place}[{i}]")]
    if not isinstance(schema, dict):
        # YAML's true is an int to Python.
        return [] if type(value) is schema else [f"{place}: {value!r} is no {schema.__name__}"]
    if not isinstance(value, dict):
        return [f"{place}: expected a mapping"]
    known = {key.rstrip("?"): inner for key, inner in schema.items()}
    found = [f"{place}.{key}: unknown" for key in value if key not in known]
    found += [f"{place}.{key}: missing" for key in schema
              if not key.endswith("?") and key not in value]
    for key, inner in known.items():
        if key in value:
            found += faults(value[key], inner, f"{place}.{key}")
    return found


class KubernetesTest(unittest.TestCase):
    def submit(self, *words, name="tiny", checkpoint=CHECKPOINTS, job=None, exit_code=0):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/job.yaml"
            with open(path, "w", newline="") as file:
                file.write(job or JOB.format(name=name, checkpoint=checkpoint))
            done = subprocess.run(
                [MILLRACE, "submit", path, "--export", "kubernetes", *words],
                capture_output=True, text=True)
        self.assertEqual(done.returncode, exit_code, done.stderr)
        return done

    def objects(self, *words, **keywords):
        """The objects by kind, which are of the schema."""
        found = {}
        for entry in yaml.safe_load_all(self.submit(*words, **keywords).stdout):
            self.assertEqual(faults(entry, SCHEMAS[entry["kind"]], entry["kind"]), [])
            found[entry["kind"]] = entry
        self.assertEqual(set(found), set(SCHEMAS))
        return found

    # Goal: the manifest is YAML of the fields that Kubernetes knows, whose parts fit each
    # other, and holds the job file byte for byte. Method: parse it.
    def test_parts_fit_each_other(self):
        found = self.objects("--image", "registry/millrace:1", "--nodes", "4",
                             "--volume", "training:/data", "--volume", "runs:/runs")
        self.assertEqual(found["ConfigMap"]["data"]["job.yaml"],
                         JOB.format(name="tiny", checkpoint=CHECKPOINTS))
        job = found["Job"]["spec"]
        self.assertEqual((job["completions"], job["parallelism"]), (4, 4))
        self.assertEqual(job["completionMode"], "Indexed")
        self.assertEqual(job["backoffLimit"], 12)
        pod = job["template"]["spec"]
        self.assertEqual(pod["restartPolicy"], "Never")  # Needed by podFailurePolicy.
        self.assertEqual(pod["subdomain"], found["Service"]["metadata"]["name"])
        container = pod["containers"][0]
        self.assertIn("--agents 4 --port 4711", container["args"][0])
        self.assertIn("--join tiny-0.tiny:4711", container["args"][0])
        self.assertEqual(container["workingDir"], "/data")
        self.assertEqual({mount["name"] for mount in container["volumeMounts"]},
                         {volume["name"] for volume in pod["volumes"]})
        codes = {rule["onExitCodes"]["values"][0]: rule["action"]
                 for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule}
        self.assertEqual(codes, {2: "FailJob", 75: "Ignore"})
        subprocess.run(["sh", "-n", "-c", container["args"][0]], check=True)

    # Goal: what no checkpoint can bring back is not started again; one node needs nobody to
    # join. Method: a job without checkpoints on one node.
    def test_without_checkpoints_fails_once(self):
        words = ("--image", "millrace")
        checkpoint = "{at_end: false, interval_steps: 0, resume: none}"
        found = self.objects(*words, checkpoint=checkpoint)
        job = found["Job"]["spec"]
        self.assertEqual(job["backoffLimit"], 0)
        self.assertEqual(len(job["podFailurePolicy"]["rules"]), 1)
        container = job["template"]["spec"]["containers"][0]
        self.assertNotIn("lifecycle", container)
        self.assertEqual(container["args"], ["exec millrace run /etc/millrace/job.yaml"])
        self.assertIn("warning", self.submit(*words, checkpoint=checkpoint).stderr)

    # Goal: names of jobs become names of Kubernetes. Method: names with other characters.
    def test_names(self):
        for name, expected in (("Llama_3.8B", "llama-3-8b"), ("8b", "job-8b"),
                               ("x" * 70, "x" * 50)):
            found = self.objects("--image", "millrace", "--nodes", "2", name=name)
            self.assertEqual(found["Job"]["metadata"]["name"], expected)

    # Goal: what cannot work is refused with what to do. Method: one mistake at a time.
    def test_bad_input(self):
        for words, expected in (
                ([], "--image"),
                (["--image", "millrace", "--volume", "training"], "CLAIM:/path"),
                (["--image", "millrace", "--volume", "a b:/data"], "CLAIM:/path"),
                (["--image", "millrace", "--slurm"], "--export"),
                (["--image", "millrace", "--now"], "--now")):
            self.assertIn(expected, self.submit(*words, exit_code=2).stderr)
        windows = JOB.format(name="tiny", checkpoint=CHECKPOINTS).replace("\n", "\r\n")
        self.assertIn("carriage return",
                      self.submit("--image", "millrace", job=windows, exit_code=2).stderr)


if __name__ == "__main__":
    try:
        import yaml
    except ImportError:
        print("no PyYAML for this Python (Debian: python3-yaml)")
        sys.exit(SKIPPED)
    MILLRACE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
