# Plots what scripts/engine-bench has measured. It sets `results`, `plot_file` and `processors`.
set datafile separator comma
set terminal pngcairo size 1500,1050 font "DejaVu Sans,12" background "#ffffff"
set output plot_file

set multiplot layout 2,2 title "Sidestep engine, shared memory, ".processors." processors" \
  font ",17" margins 0.075,0.975,0.075,0.9 spacing 0.085,0.13

set logscale x 2
set xrange [0.8:1310720]
set xtics ("1" 1, "8" 8, "64" 64, "512" 512, "4K" 4096, "64K" 65536, "1M" 1048576)
set xlabel "bytes of a message"
set grid xtics ytics lc "#dddddd" lt 1 lw 0.7
set border 3 lc "#666666"
set tics nomirror textcolor "#333333"
set key top left reverse Left samplen 2.5 spacing 1.15 textcolor "#333333"
set title font ",14" offset 0,-0.4

file(name) = results."/".name.".csv"
set style data linespoints
set style line 1 lc "#0b6fb8" lw 2.2 pt 7 ps 1.1
set style line 2 lc "#d9772b" lw 2.2 pt 5 ps 1.0
set style line 3 lc "#3d9a50" lw 2.2 pt 9 ps 1.2
set style line 4 lc "#8f4fa8" lw 2.2 pt 13 ps 1.3
set style line 5 lc "#8f4fa8" lw 1.5 pt 12 ps 1.0 dt 2
set style line 11 lc "#0b6fb8" lw 1.5 pt 6 ps 1.0 dt 2
set style line 12 lc "#d9772b" lw 1.5 pt 4 ps 0.9 dt 2
set style line 13 lc "#3d9a50" lw 1.5 pt 8 ps 1.0 dt 2

set yrange [0:*]
set ylabel "GB/s, all nodes together"
set title "Throughput"
plot file("one-way") using "size":"gb_per_s" ls 4 title "2 nodes, one way", \
     file("all-to-all-2") using "size":"gb_per_s" ls 1 title "2 nodes, both ways", \
     file("all-to-all-4") using "size":"gb_per_s" ls 2 title "4 nodes, all to all", \
     file("all-to-all-8") using "size":"gb_per_s" ls 3 title "8 nodes, all to all"

set ylabel "million messages/s, all nodes together"
set title "Message rate"
set key top right
plot file("one-way") using "size":(column("messages_per_s")/1e6) ls 4 title "2 nodes, one way", \
     file("all-to-all-2") using "size":(column("messages_per_s")/1e6) ls 1 title "2 nodes, both ways", \
     file("all-to-all-4") using "size":(column("messages_per_s")/1e6) ls 2 title "4 nodes, all to all", \
     file("all-to-all-8") using "size":(column("messages_per_s")/1e6) ls 3 title "8 nodes, all to all"

set logscale y
set yrange [*:*]
set format y "%g"
set key top left
set ylabel "GB/s, all nodes together"
set title "Raw: full rings, released unread (dashed), and messages over streams"
plot file("raw-2") using "size":"gb_per_s" ls 11 title "2 nodes, raw", \
     file("raw-4") using "size":"gb_per_s" ls 12 title "4 nodes, raw", \
     file("raw-8") using "size":"gb_per_s" ls 13 title "8 nodes, raw", \
     file("all-to-all-2") using "size":"gb_per_s" ls 1 title "2 nodes", \
     file("all-to-all-4") using "size":"gb_per_s" ls 2 title "4 nodes", \
     file("all-to-all-8") using "size":"gb_per_s" ls 3 title "8 nodes"

set ylabel "microseconds"
set title "Half a round trip, 2 nodes"
plot file("ping-pong") using "size":"half_rtt_p99_us" ls 5 title "99th percentile", \
     file("ping-pong") using "size":"half_rtt_median_us" ls 4 title "median"
unset multiplot
