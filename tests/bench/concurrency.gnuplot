# Plots what scripts/measure-concurrency has measured. It sets `plot_file`, `baseline`, what the
# ratios are to, `wheres`, a list of words, and for each of them names_1, names_2, ...: lists of
# FILE|TITLE with ~ for each space. A file has connections and ratios: requests/s, p99, p99.9.
set terminal svg size 1500,60 + 500 * words(wheres) font "DejaVu Sans,13" background "#ffffff"
set output plot_file
set multiplot layout words(wheres),3 title "Sidestep as a ratio to ".baseline font ",17"

set logscale xy 2
set xrange [0.9:72]
set xtics (1, 2, 4, 16, 64)
set xlabel "connections" offset 0,0.4
set grid xtics ytics lc "#dddddd" lt 1 lw 0.7
set border 3 lc "#666666"
set tics nomirror textcolor "#333333"
set style data linespoints
set style line 1 lc "#0b6fb8" lw 2 pt 7 ps 0.7
set style line 2 lc "#0b6fb8" lw 2 pt 6 ps 0.7 dt 2
set style line 3 lc "#d9772b" lw 2 pt 5 ps 0.7
set style line 4 lc "#d9772b" lw 2 pt 4 ps 0.7 dt 2
set style line 5 lc "#3d9a50" lw 2 pt 9 ps 0.8
set style line 6 lc "#3d9a50" lw 2 pt 8 ps 0.8 dt 2
set style line 7 lc "#8f4fa8" lw 2 pt 13 ps 0.8
set style line 8 lc "#8f4fa8" lw 2 pt 12 ps 0.8 dt 2
set key below maxcols 3 samplen 2.5 spacing 1.05 textcolor "#333333" font ",11"
set arrow from graph 0, first 1 to graph 1, first 1 nohead lc "#555555" lw 1.5 back

file(name) = name[:strstrt(name, "|") - 1]
title(name) = spaced(name[strstrt(name, "|") + 1:])
spaced(s) = strstrt(s, "~") == 0 ? s : \
  s[:strstrt(s, "~") - 1]." ".spaced(s[strstrt(s, "~") + 1:])

do for [w = 1:words(wheres)] {
  names = value(sprintf("names_%d", w))
  set title word(wheres, w).": requests/s (above 1 is better)"
  plot for [i = 1:words(names)] file(word(names, i)) using 1:2 ls i title title(word(names, i))
  set title word(wheres, w).": p99 (below 1 is better)"
  plot for [i = 1:words(names)] file(word(names, i)) using 1:3 ls i title title(word(names, i))
  set title word(wheres, w).": p99.9 (below 1 is better)"
  plot for [i = 1:words(names)] file(word(names, i)) using 1:4 ls i title title(word(names, i))
}
unset multiplot
