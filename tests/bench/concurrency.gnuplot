# Plots what scripts/measure-concurrency has measured. It sets `plot_file` and `names`, a list of
# FILE|TITLE with ~ for each space; a file has connections and ratios: requests/s, p99, p99.9.
set terminal svg size 1500,560 font "DejaVu Sans,13" background "#ffffff"
set output plot_file
set multiplot layout 1,3 title "Sidestep as a ratio to the kernel" font ",17" \
  margins 0.05,0.985,0.12,0.85 spacing 0.05,0.1

set logscale xy 2
set xrange [0.9:72]
set xtics (1, 2, 4, 16, 64)
set xlabel "connections"
set grid xtics ytics lc "#dddddd" lt 1 lw 0.7
set border 3 lc "#666666"
set tics nomirror textcolor "#333333"
set key top right samplen 2 spacing 1.1 textcolor "#333333"
set style data linespoints
set arrow from graph 0, first 1 to graph 1, first 1 nohead lc "#888888" lw 1.5 back

file(i) = word(names, i)[:strstrt(word(names, i), "|") - 1]
title(i) = spaced(word(names, i)[strstrt(word(names, i), "|") + 1:])
spaced(s) = strstrt(s, "~") == 0 ? s : \
  s[:strstrt(s, "~") - 1]." ".spaced(s[strstrt(s, "~") + 1:])

set title "Requests/s (above 1 is better)"
plot for [i = 1:words(names)] file(i) using 1:2 lw 2 pt i title title(i)
unset key
set title "p99 (below 1 is better)"
plot for [i = 1:words(names)] file(i) using 1:3 lw 2 pt i notitle
set title "p99.9 (below 1 is better)"
plot for [i = 1:words(names)] file(i) using 1:4 lw 2 pt i notitle
unset multiplot
