// A client of ZooKeeper.
//
//   java ZooKeeperUse check HOSTS          every kind of call; prints a line for each
//   java ZooKeeperUse write HOSTS COUNT    acknowledged writes, one after the other, whoever dies meanwhile
//   java ZooKeeperUse read HOSTS           what those have left, as the server in HOSTS sees it

import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.WatchedEvent;
import org.apache.zookeeper.Watcher.Event.KeeperState;
import org.apache.zookeeper.ZooDefs.Ids;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

final class ZooKeeperUse {
    static final int MANY = 10_000;

    static ZooKeeper connect(String hosts) throws Exception {
        CountDownLatch connected = new CountDownLatch(1);
        ZooKeeper client = new ZooKeeper(hosts, 30_000, event -> {
            if (event.getState() == KeeperState.SyncConnected) {
                connected.countDown();
            }
        });
        if (!connected.await(60, TimeUnit.SECONDS)) {
            throw new IOException("not connected to " + hosts);
        }
        return client;
    }

    static String create(ZooKeeper client, String path, byte[] data) throws Exception {
        return client.create(path, data, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT);
    }

    static String next(BlockingQueue<WatchedEvent> events) throws Exception {
        WatchedEvent event = events.poll(60, TimeUnit.SECONDS);
        return event == null ? "no event" : event.getType() + " " + event.getPath();
    }

    static void check(String hosts) throws Exception {
        ZooKeeper one = connect(hosts);
        ZooKeeper two = connect(hosts);
        Noise.say(create(one, "/t", new byte[0]));
        for (int size : new int[] {1, 1000, 100_000, 1_000_000}) {
            create(one, "/t/size" + size, Noise.bytes(size, size));
            two.sync("/t", (code, path, context) -> { }, null);
            Stat stat = new Stat();
            Noise.say("read", size, Noise.sum(two.getData("/t/size" + size, false, stat)), stat.getVersion(),
                    stat.getDataLength());
        }
        Noise.say("bad path", Noise.outcome(() -> one.exists("no/slash", false)));
        Noise.say("exists", Noise.outcome(() -> create(one, "/t/size1", new byte[1])));
        Noise.say("none", Noise.outcome(() -> one.getData("/t/none", false, null)));
        Noise.say("version", Noise.outcome(() -> one.setData("/t/size1", new byte[2], 7)));
        Noise.say("set", one.setData("/t/size1", new byte[2], 0).getVersion(),
                one.setData("/t/size1", new byte[3], 1).getVersion());
        Noise.say("not empty", Noise.outcome(() -> {
            one.delete("/t", -1);
            return "deleted";
        }));
        for (int i = 0; i < 3; i++) {
            Noise.say(one.create("/t/sequence", null, Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT_SEQUENTIAL));
        }
        Noise.say("multi", one.multi(List.of(Op.create("/t/m", new byte[5], Ids.OPEN_ACL_UNSAFE,
                CreateMode.PERSISTENT), Op.setData("/t/m", new byte[6], 0), Op.check("/t/m", 1))).size());
        Noise.say("multi that fails", Noise.outcome(() -> one.multi(List.of(
                Op.delete("/t/m", -1), Op.check("/t/none", 1)))), two.exists("/t/m", false) != null);

        BlockingQueue<WatchedEvent> events = new LinkedBlockingQueue<>();
        two.exists("/t/new", events::add);
        create(one, "/t/new", null);
        Noise.say(next(events));
        two.getData("/t/new", events::add, null);
        one.setData("/t/new", new byte[1], -1);
        Noise.say(next(events));
        two.getChildren("/t", events::add);
        one.delete("/t/new", -1);
        Noise.say(next(events));

        ZooKeeper three = connect(hosts);
        three.create("/t/ephemeral", null, Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL);
        two.sync("/t", (code, path, context) -> { }, null);
        Noise.say("ephemeral", two.exists("/t/ephemeral", events::add) != null);
        three.close();
        Noise.say(next(events), two.exists("/t/ephemeral", false) != null);

        many(one, two);
        List<String> children = two.getChildren("/t", false);
        Collections.sort(children);
        Noise.say(children);
        two.close();
        one.close();
    }

    /** Calls that don't wait for each other's answers, from two clients. */
    static void many(ZooKeeper one, ZooKeeper two) throws Exception {
        create(one, "/many", null);
        CountDownLatch created = new CountDownLatch(MANY);
        AtomicInteger failed = new AtomicInteger();
        long start = System.nanoTime();
        for (int i = 0; i < MANY; i++) {
            (i % 2 == 0 ? one : two).create("/many/" + i, Noise.bytes(i, i % 300), Ids.OPEN_ACL_UNSAFE,
                    CreateMode.PERSISTENT, (code, path, context, name) -> {
                        if (code != 0) {
                            failed.incrementAndGet();
                        }
                        created.countDown();
                    }, null);
        }
        if (!created.await(100, TimeUnit.SECONDS)) {
            throw new IOException(created.getCount() + " of " + MANY + " answers missing");
        }
        System.out.println("rate " + MANY * 1_000_000_000L / (System.nanoTime() - start));
        long wrong = 0;
        for (int i = 0; i < MANY; i += 10) {
            byte[] data = (i % 20 == 0 ? two : one).getData("/many/" + i, false, null);
            wrong += Noise.sum(data).equals(Noise.sum(Noise.bytes(i, i % 300))) ? 0 : 1;
        }
        Noise.say("many", failed.get(), wrong, one.getChildren("/many", false).size());
    }

    static void write(String hosts, int count) throws Exception {
        ZooKeeper client = connect(hosts);
        create(client, "/e", null);
        int again = 0;
        for (int i = 0; i < count; i++) {
            while (true) {
                try {
                    create(client, "/e/" + i, Noise.bytes(i, 100 + i % 1000));
                    break;
                } catch (KeeperException.NodeExistsException error) {
                    break;  // its answer was lost with the server
                } catch (KeeperException.ConnectionLossException error) {
                    again++;
                    Thread.sleep(50);
                }
            }
            if (i % 100 == 0) {
                System.out.println("acknowledged " + i);
                System.out.flush();
            }
            Thread.sleep(3);
        }
        client.close();
        System.out.println("tried again " + again);
        Noise.say("wrote", count);
    }

    static void read(String hosts) throws Exception {
        ZooKeeper client = connect(hosts);
        CountDownLatch synced = new CountDownLatch(1);
        client.sync("/e", (code, path, context) -> synced.countDown(), null);
        synced.await(60, TimeUnit.SECONDS);
        List<Integer> names = new ArrayList<>();
        for (String name : client.getChildren("/e", false)) {
            names.add(Integer.valueOf(name));
        }
        Collections.sort(names);
        StringBuilder sums = new StringBuilder();
        for (int name : names) {
            sums.append(name).append('=').append(Noise.sum(client.getData("/e/" + name, false, null)));
        }
        client.close();
        Noise.say("read", names.size(), Noise.sum(sums.toString().getBytes()));
    }

    public static void main(String[] args) throws Exception {
        Noise.watchdog(110);
        switch (args[0]) {
            case "check":
                check(args[1]);
                break;
            case "write":
                write(args[1], Integer.parseInt(args[2]));
                break;
            default:
                read(args[1]);
        }
        System.exit(0);
    }
}
