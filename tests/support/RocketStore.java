// Drives the real store library of RocketMQ: RocketStore read|write STORE [TOPIC QUEUE COUNT]
// read   prints every message of every queue: topic, queue, offset, store time, keys, body
// write  puts COUNT messages and stops cleanly
import java.io.File;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public class RocketStore {
    public static void main(String[] args) throws Exception {
        String root = args[1];
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(4096);
        config.setMappedFileSizeConsumeQueue(200);
        config.setMaxHashSlotNum(10);
        config.setMaxIndexNum(40);
        config.setHaListenPort(0);
        config.setFileReservedTime(1_000_000);
        config.setDiskMaxUsedSpaceRatio(99);
        BrokerConfig broker = new BrokerConfig();
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("test", true),
            (topic, queue, offset, tags, time, filter, properties) -> { }, broker, new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        try {
            if (args[0].equals("write")) {
                write(store, args[2], Integer.parseInt(args[3]), Integer.parseInt(args[4]));
            } else {
                read(store, new File(root, "consumequeue"));
            }
        } finally {
            store.shutdown();
        }
        System.exit(0);
    }

    static void write(DefaultMessageStore store, String topic, int queue, int count) throws Exception {
        for (int n = 0; n < count; n++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topic);
            message.setQueueId(queue);
            message.setBody(("library-" + n).getBytes());
            message.setKeys("lib" + n);
            message.setTags("Tag");
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(new InetSocketAddress("127.0.0.1", 1234));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 5678));
            System.out.println("put " + store.putMessage(message).getPutMessageStatus());
        }
        Thread.sleep(1500);
    }

    static void read(DefaultMessageStore store, File queues) throws Exception {
        Thread.sleep(1000);
        for (String topic : sorted(queues)) {
            for (String queue : sorted(new File(queues, topic))) {
                int id = Integer.parseInt(queue);
                long offset = store.getMinOffsetInQueue(topic, id);
                long end = store.getMaxOffsetInQueue(topic, id);
                while (offset < end) {
                    GetMessageResult result = store.getMessage("test", topic, id, offset, 32, null);
                    if (result == null || result.getMessageMapedList().isEmpty()) {
                        offset = result == null ? end : Math.max(offset + 1, result.getNextBeginOffset());
                        continue;
                    }
                    for (SelectMappedBufferResult piece : result.getMessageMapedList()) {
                        ByteBuffer buffer = piece.getByteBuffer();
                        MessageExt message = MessageDecoder.decode(buffer);
                        System.out.println("msg\t" + topic + "\t" + id + "\t" + message.getQueueOffset() + "\t"
                            + message.getStoreTimestamp() + "\t" + message.getProperty(MessageConst.PROPERTY_KEYS)
                            + "\t" + new String(message.getBody()));
                    }
                    offset = result.getNextBeginOffset();
                    result.release();
                }
            }
        }
    }

    static String[] sorted(File folder) {
        String[] names = folder.list();
        if (names == null) {
            return new String[0];
        }
        Arrays.sort(names);
        return names;
    }
}
