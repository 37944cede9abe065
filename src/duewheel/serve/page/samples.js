// A short history of what was read, kept by this page alone: rates and quantiles of the last minute.

const KEPT_MS = 5 * 60_000;

/** Counters over time. */
export class Samples {
  constructor() {
    this.samples = []; // {at, value} with rising `at`
  }

  /** Adds a value; a counter that falls begins again, for its process has. */
  add(at, value) {
    const last = this.samples.at(-1);
    if (last && value < last.value) {
      this.samples = [];
    }
    this.samples.push({ at, value });
    while (this.samples[0].at < at - KEPT_MS) {
      this.samples.shift();
    }
  }

  /** The rate over the last so many ms, per second; null without two samples. */
  rate(overMs) {
    const last = this.samples.at(-1);
    const first = this.samples.find((sample) => sample.at >= last.at - overMs);
    return first && first.at < last.at
      ? ((last.value - first.value) * 1000) / (last.at - first.at)
      : null;
  }

  /** Rates between neighbouring samples, oldest first. */
  rates() {
    return this.samples.slice(1).map((sample, i) => {
      const before = this.samples[i];
      return ((sample.value - before.value) * 1000) / Math.max(1, sample.at - before.at);
    });
  }
}

/** Histograms over time: the counts of each are cumulative, and rise. */
export class HistogramSamples {
  constructor() {
    this.samples = [];
  }

  add(at, bounds, counts) {
    const last = this.samples.at(-1);
    if (last && counts.at(-1) < last.counts.at(-1)) {
      this.samples = [];
    }
    this.samples.push({ at, bounds, counts });
    while (this.samples[0].at < at - KEPT_MS) {
      this.samples.shift();
    }
  }

  /**
   * Quantiles over the last so many ms, as upper bounds: a value lies somewhere in its bucket.
   * @returns {{values: Array<?number>, total: number}} null: above the last bound
   */
  quantiles(overMs, wanted) {
    const last = this.samples.at(-1);
    const first = this.samples.find((sample) => sample.at >= last.at - overMs);
    const counts = last.counts.map((n, i) => n - first.counts[i]);
    const total = counts.at(-1);
    const values = wanted.map((q) => last.bounds[counts.findIndex((n) => n >= q * total)] ?? null);
    return { values, total };
  }
}
