// Numbers as they are shown.

const LEAST_SHOWN = 1e-4;

export const share = (value) =>
  value > 0 && value < LEAST_SHOWN ? "< 0.01 %" : `${Number((100 * value).toPrecision(value < 0.995 ? 2 : 3))} %`;

export const probability = (logProb) => share(Math.exp(logProb));

// With a real minus sign, which is as wide as a digit.
export const fixed = (value, digits = 2) => value.toFixed(digits).replace(/^-(?=[0.]*$)/, "").replace("-", "−");

export const milliseconds = (seconds) => `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)} ms`;

export const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 2 });

export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
