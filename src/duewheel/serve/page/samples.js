// A short history of the reads, kept by this page alone: rates and quantiles of the last minute.

const KEPT_MS = 5 * 60_000;

/** Values over time, and a count in each that rises. */
export class Samples {
  constructor() {
    this.samples = []; // {at, total, value} with rising `at`
  }

  /** Adds a value; if its total falls, the history begins again, for its process has. */
  add(at, total, value = null) {
    const isNew = total < (this.samples.at(-1)?.total ?? 0);
    const kept = isNew ? [] : this.samples.filter((sample) => sample.at >= at - KEPT_MS);
    this.samples = [...kept, { at, total, value }];
  }

  /** The first sample of the last so many ms, and the last one. */
  over(ms) {
    const last = this.samples.at(-1);
    return [this.samples.find((sample) => sample.at >= last.at - ms), last];
  }

  /** The rate over the last so many ms, per second; null without two samples. */
  rate(ms) {
    if (this.samples.length < 2) {
      return null;
    }
    const [first, last] = this.over(ms);
    return first.at < last.at ? rateOf(first, last) : null;
  }

  /** Rates between neighbouring samples, oldest first. */
  rates() {
    return this.samples.slice(1).map((sample, i) => rateOf(this.samples[i], sample));
  }
}

const rateOf = (first, last) =>
  ((last.total - first.total) * 1000) / Math.max(1, last.at - first.at);

/**
 * Quantiles between two samples of cumulative counts, as upper bounds: a value is somewhere in its
 * bucket. Null: above the last bound.
 */
export function quantiles([first, last], bounds, wanted) {
  const counts = last.value.map((n, i) => n - first.value[i]);
  return wanted.map((q) => bounds[counts.findIndex((n) => n >= q * counts.at(-1))] ?? null);
}
