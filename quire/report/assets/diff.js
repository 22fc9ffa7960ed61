// Which words two texts share, as a list of [kind, text]; kind is "same", "gone" or "new".
"use strict";
quire.wordDiff = (() => {
  const MOST_EDITS = 600; // beyond that the texts have little in common, and a diff says nothing

  const words = (text) => text.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];

  // Myers' greedy walk: the furthest point on each diagonal, edit by edit.
  function trail(before, after) {
    const most = Math.min(before.length + after.length, MOST_EDITS);
    const furthest = new Map([[1, 0]]);
    const steps = [];
    for (let edits = 0; edits <= most; edits++) {
      steps.push(new Map(furthest));
      for (let diagonal = -edits; diagonal <= edits; diagonal += 2) {
        const left = furthest.get(diagonal - 1), right = furthest.get(diagonal + 1);
        const down = diagonal === -edits || (diagonal !== edits && left < right);
        let x = down ? right : left + 1;
        while (x < before.length && x - diagonal < after.length && before[x] === after[x - diagonal]) x++;
        furthest.set(diagonal, x);
        if (x >= before.length && x - diagonal >= after.length) return steps;
      }
    }
    return null;
  }

  function walkBack(before, after, steps) {
    const parts = [];
    let x = before.length, y = after.length;
    for (let edits = steps.length - 1; edits >= 0; edits--) {
      const furthest = steps[edits], diagonal = x - y;
      const down = diagonal === -edits || (diagonal !== edits && furthest.get(diagonal - 1) < furthest.get(diagonal + 1));
      const previous = down ? diagonal + 1 : diagonal - 1;
      const fromX = furthest.get(previous), fromY = fromX - previous;
      while (x > fromX && y > fromY && x > 0 && y > 0) { parts.push(["same", before[--x]]); y--; }
      if (edits === 0) break;
      if (down) parts.push(["new", after[--y]]); else parts.push(["gone", before[--x]]);
    }
    return parts.reverse();
  }

  function merged(parts) {
    const joined = [];
    for (const [kind, text] of parts) {
      const last = joined[joined.length - 1];
      if (last && last[0] === kind) last[1] += text; else joined.push([kind, text]);
    }
    return joined;
  }

  return (first, second) => {
    if (first === second) return [["same", first]];
    const before = words(first), after = words(second);
    const steps = trail(before, after);
    if (steps === null) return [["gone", first], ["new", second]];
    return merged(walkBack(before, after, steps));
  };
})();
