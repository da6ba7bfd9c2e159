// Two answers compared, symbol by symbol.

const MOST_CELLS = 1e6; // of the table; longer answers are not marked

// The indices of each list's items that are not in the longest sequence which both have.
export function differing(first, second) {
  const [rows, columns] = [first.length, second.length];
  if (rows * columns > MOST_CELLS) return [new Set(), new Set()];
  const longest = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  for (let row = rows - 1; row >= 0; row--) {
    for (let column = columns - 1; column >= 0; column--) {
      longest[row][column] = first[row] === second[column]
        ? longest[row + 1][column + 1] + 1
        : Math.max(longest[row + 1][column], longest[row][column + 1]);
    }
  }
  const marks = [new Set(first.keys()), new Set(second.keys())];
  for (let row = 0, column = 0; row < rows && column < columns;) {
    if (first[row] === second[column]) {
      marks[0].delete(row++);
      marks[1].delete(column++);
    } else if (longest[row + 1][column] >= longest[row][column + 1]) row++;
    else column++;
  }
  return marks;
}
